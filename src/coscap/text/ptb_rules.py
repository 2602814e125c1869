"""The rules of Penn Treebank tokenising: what a token can look like, one pattern for each kind.

The lexer tries the rules at a position and takes the longest match, the earlier rule where two are equally
long. A rule may look at the text behind its token; what it looks at counts for the length. So a rule is a
pattern whose group 1 is the token, and the rest of the match is what it looked at.

The behaviour is that of CoreNLP 3.4.1's PTBTokenizer as the COCO evaluation runs it. The rules were found by
asking it: its output on all COCO captions, on every character, on every string of up to five letters with a
dot behind it, and on thousands of generated lines (scripts/check_tokeniser.py).
"""

import re
from functools import cache

from coscap.text.ptb_characters import ALNUM, APOS, HYPHEN, LETTER, SOFT_HYPHEN, SYMBOL

# -- words -----------------------------------------------------------------------------------------------------

WORD = rf"{LETTER}(?:{LETTER}|\d|{SOFT_HYPHEN})*(?:[.!?]{LETTER}(?:{LETTER}|\d|{SOFT_HYPHEN})*)*"
_PART = rf"(?:{ALNUM}|{SOFT_HYPHEN})+"
# o'clock, d'oeuvre, O'Brien: a letter that may carry an apostrophe before at least two letters.
_ELIDED = rf"(?:[dloDLO](?:{APOS}|[`‘])(?={ALNUM}{{2}}))?"
_THING = rf"{_ELIDED}{_PART}(?:(?:{HYPHEN}|_){_ELIDED}{_PART})*"
_HYPHENED = (
    r"(?:[A-Za-z0-9][A-Za-z0-9.,\u00ad]*(?:-(?:[A-Za-z](?:\.[A-Za-z])+\.|[A-Za-z0-9\u00ad]+))+|"
    r"(?:Canada|Sino|Korean|EU|Japan|non)-U\.S|U\.S\.-(?:U\.K|U\.S\.S\.R))"
)
_AMPERSAND = r"[A-Z]+(?:(?:&amp;|[+&])[A-Z]+)+"
_PLAIN = r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}"
AUXILIARY = r"(?i:s|m|d|re|ve|ll)"
_NOT_BEHIND = r"(?:[^A-Za-z]|$)"
NUMBER = rf"[-+]?(?:\d+(?:[.:,{SOFT_HYPHEN}\u066b\u066c]\d+)*|(?:[.:,{SOFT_HYPHEN}]\d+)+)"

TWO_WORDS = "(can)not|(gon|wan)na|(got)ta|(gim|lem)me"
# Words that keep their dot. The first kind can end a sentence: it looks at the two characters behind it.
ENDING_ABBREVIATIONS = (
    "al|ala|apr|ariz|assn|aug|bhd|bldg|blvd|bros|calif|co|colo|conn|corp|cos|ct|dak|dec|ed\\.d|esq|est|etc|ext|feb|"
    "fla|fri|ga|inc|ind|intl|jan|jr|jul|jun|kan|kans|ky|ltd|mar|md|mich|minn|mo|mon|mont|neb|nev|nov|oct|okla|penn|"
    "ph\\.d|plc|rd|rt|sep|sept|seq|sq|sr|sys|tel|tenn|thu|thurs|tue|tues|univ|va|vt|wed|wis|wisc|wyo"
)
CAPITAL_ABBREVIATIONS = "Ark|Az|Del|Ill|La|Mass|Miss|Ore|Pa|Tex|Wash"  # these only with a capital
LOWER_ABBREVIATIONS = "[Mm]tg|[Mm]fg|[Pp]ptes?|[Pp]ptys?|[Pp]tes?|[Pp]tys?"  # and these not in capitals
TITLES = (
    "adj|adm|adv|alex|asst|atty|attys|ave|brig|capt|cf|cie|cmdr|col|comdr|cpl|dept|det|dr|drs|elec|ens|ft|gen|gov|"
    "govs|hon|insp|invt|jos|lieut|lt|maj|messrs|mlle|mme|mr|mrs|ms|msgr|mt|natl|pfc|ph|pres|prof|profs|pvt|rep|reps|"
    "rev|sen|sens|sfc|sgt|spc|st|ste|supt|supts|treas|vs|wm"
)
NUMBERED_ABBREVIATIONS = "art|ca|figs?|nos?|op|pp|prop"  # before a number
# Words that begin a sentence, so that a letter and a dot before them are an end and not an initial.
SENTENCE_STARTS = (
    "A|About|According|Additionally|After|An|As|At|But|Earlier|He|Her|Here|However|If|In|It|Last|Many|More|Now|"
    "Once|One|Other|Our|She|Since|So|Some|Such|That|The|Their|Then|There|These|They|This|We|What|When|While|Yet|You"
)
_STARTS = "|".join(f"{word}|{word.upper()}" for word in SENTENCE_STARTS.split("|"))
_CAPITALS = "|".join(f"{word}|{word.upper()}" for word in CAPITAL_ABBREVIATIONS.split("|"))

EXTENSIONS = "bat|bmp|bz2|c|cgi|class|cpp|dll|docx?|exe|gif|gz|h|html?|jar|java|jpe?g|mov|mp3|pdf|php|pl|png|"
EXTENSIONS += "pptx?|ps|py|sql|tar|txt|wav|x|xml|zip"
_NAME = r"[A-Za-z][A-Za-z0-9_:.-]*"
_ATTRIBUTE = rf"(?: +{_NAME}(?: *= *(?:'[^']*'|\"[^\"]*\"))?)*"
_TAG = rf"(?:<[!?][A-Za-z-][^>]*>|<{_NAME}{_ATTRIBUTE} */?>|</{_NAME} *>)"
_MAIL = r"(?:<|&lt;)?[a-zA-Z0-9][^\s\"<>|(){}]*@(?:[^\s\"<>|(){}.]+\.)*[^\s\"<>|(){}.]+(?:>|&gt;)?"
_PATH = r"[^\s\"<>|(){}]+[^\s\"<>|.!?(){},-]"
_LIKELY_PATH = r"(?:/[^\s\"<>|()]+[^\s\"<>|.!?(){},-])?"
_SITE = r"[^\s\"<>|.!?(){},]+\."
# A host may hold a slash, so the longest match can begin with the shortest host as well as with the longest.
_URLS = {
    "www": rf"(www\.(?:{_SITE})+[a-zA-Z]{{2,4}}{_LIKELY_PATH})",
    "www, short host": rf"(www\.(?:{_SITE})+?[a-zA-Z]{{2,4}}{_LIKELY_PATH})",
    "likely url": rf"((?:[^\s\"`'<>|.!?(){{}},-_$]+\.)+(?:com|net|org|edu){_LIKELY_PATH})",
}
_SEPARATOR = r"[- \u00a0]"

# -- rules -----------------------------------------------------------------------------------------------------

# A rule is its name and its pattern; the order decides between matches of the same length.
_LETTER_RULES = {
    "two words": rf"(?i:{TWO_WORDS})",
    "before n't": rf"([A-Za-z]*[A-MO-Za-mo-z])[nN](?:{APOS}|[`‘])[tT]",
    "n't": rf"([nN](?:{APOS}|[`‘])[tT])(?:(?!{LETTER}).|$)",
    "before auxiliary": rf"({WORD}){APOS}{AUXILIARY}",
    "url": rf"(https?://{_PATH})",
    **_URLS,
    "mail": rf"({_MAIL})",
    "title": rf"((?i:{TITLES})\.)",
    "numbered": rf"((?i:{NUMBERED_ABBREVIATIONS})\.) ?\d",
    "apostrophe": rf"((?i:c{APOS}mon|cont{APOS}d\.|ev{APOS}ry|li{APOS}l|c{APOS}est|nat{APOS}l|nor{APOS}easter|"
    rf"s{APOS}mores|e{APOS}er|ol{APOS}|somethin{APOS}|dunkin{APOS}|[ldj]{APOS}))",
    "elided": rf"([A-HJ-XZn](?:{APOS}|[`‘]){LETTER}{{2,}})",
    "vowels": rf"({LETTER}+[aeiouyAEIOUY](?:{APOS}|[`‘])[aeiouA-Z]{LETTER}*)",
    "y'": rf"([yY]{APOS}){LETTER}",
    "end": rf"([A-Za-z])\.\s+(?:{_STARTS}|(?i:mr|ms)\.|{_TAG})(?:\s|$)",
    "acronym": r"([A-Za-z](?:\.[A-Za-z])+\.)",
    "initial": r"([A-Za-z]\.)",
    "ampersand": rf"({_AMPERSAND})",
    "ampersand before comma": rf"({_AMPERSAND}\.)[,;:]",
    "sharp": r"([cC]\+\+|[cCfF]#)",
    "dollar": r"([A-Z]+\$)",
    "word": rf"({WORD})",
    "ending": rf"((?:(?i:{ENDING_ABBREVIATIONS})|{_CAPITALS}|{LOWER_ABBREVIATIONS})\.)(?:.{{2}})?",
}
_BOTH_RULES = {
    "thing": rf"({_THING})",
    "hyphened": rf"({_HYPHENED})",
    "slashed": rf"({_PLAIN}(?:\\?/{_PLAIN}){{1,2}})",
    "file": rf"({_PART}(?:\.{_PART})*\.(?i:{EXTENSIONS}))(?:[\s.?!,]|$)",
    "word before comma": rf"({WORD}\.)[,;:]",
    "thing before comma": rf"({_THING}\.)[,;:]",
    "hyphened before comma": rf"({_HYPHENED}\.)[,;:]",
}
_DIGIT_RULES = {
    "mail": rf"({_MAIL})",
    "date": r"(\d{1,2}[-/]\d{1,2}[-/]\d{2,4})",
    "fraction": rf"((?:\d{{1,4}}{_SEPARATOR})?\d{{1,4}}(?:\\?/|⁄)\d{{1,4}})",
}
_NUMBER_RULES = {
    "phone": rf"((?:\(\d{{2,3}}\)[ \u00a0]?|(?:\+\+?)?(?:\d{{2,4}}{_SEPARATOR})?\d{{2,4}}{_SEPARATOR})"
    rf"\d{{3,4}}{_SEPARATOR}?\d{{3,5}}|(?:(?:\+\+?)?\d{{2,4}}\.)?\d{{2,4}}\.\d{{3,4}}\.\d{{3,5}})",
    "number": rf"({NUMBER})",
}
_OTHER_RULES = {
    "likely url": _URLS["likely url"],
    "tag": rf"({_TAG})",
    "mail": rf"({_MAIL})",
    "'t is": rf"({APOS}[tT])(?i:is|was)",
    "auxiliary": rf"({APOS}{AUXILIARY}){_NOT_BEHIND}|([’\u0092]{AUXILIARY})",
    "year": rf"({APOS}\d\d)(?:\s|$)",
    "apostrophe": rf"({APOS}(?:(?i:n){APOS}|(?i:n|em|till?|cause|[2-9]0s)))",
    "opening": r"(')[A-Za-z]\S",
    "handle": rf"(@[a-zA-Z_][a-zA-Z_0-9]*|#{LETTER}+)",
    "smiley": r"([<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]])(?:[^A-Za-z0-9]|$)",
    "face": r"([-^x=~<>']_[-^x=~<>']|\([-^x=~<>'][_.]?[-^x=~<>']\)|\([-^x=~<>']-[-^x=~<>'`]\))",
    "entity": r"(&(?:amp|lt|gt|quot|nbsp|[mn]dash);)",
    "numbered entity": r"(&#\d+;|&[A-Za-z](?:acute|grave|circ|uml|tilde|cedil);)",
    "ellipsis": r"(\.{3,5}|\.(?:[ \u00a0]\.){2,4})",
    "dashes": r"(--+)",
    "run": r"([?!]+|_+|\*+|#+|@+|<<|>>|``|''|\\\*)",
    "quotes": r"([`‘’‛“”«»‹›\u0091-\u0094]{1,2})",
    "symbol": rf"({SYMBOL})",
}


Rules = tuple[tuple[str, re.Pattern[str]], ...]


@cache
def rules(first: str) -> Rules:
    """The rules for a token that begins with this character; compiled when first asked for."""
    if first.isdecimal():
        return _compiled("digit")
    return _compiled("letter" if re.match(LETTER, first) else "other")


@cache
def _compiled(kind: str) -> Rules:
    groups = {
        "letter": (_LETTER_RULES, _BOTH_RULES),
        "digit": (_DIGIT_RULES, _NUMBER_RULES, _BOTH_RULES),
        "other": (_OTHER_RULES, _NUMBER_RULES),
    }
    return tuple((name, re.compile(pattern)) for group in groups[kind] for name, pattern in group.items())
