"""The rules of Penn Treebank tokenising: what a token can look like, one pattern for each kind.

The lexer tries every rule at a position and takes the longest match, the earlier rule where two are equally
long. A rule may look at what follows its token; what it looked at counts for the length, as in any lexer
generator, so a rule is a pattern with the token in group 1 and the text it looked at behind it.

The behaviour is that of CoreNLP 3.4.1's PTBTokenizer with lower case, found from its documentation and from
its output on 616,767 COCO captions and on generated lines (scripts/check_tokeniser.py).
"""

import re

LETTER = r"(?:[^\W\d_]|[\u0300-\u036f\u00ad])"
ALNUM = r"(?:[^\W_]|[\u0300-\u036f\u00ad])"
APOS = r"['’\u0092]"
WORD = rf"{LETTER}{ALNUM}*(?:[.!?]{LETTER}{ALNUM}*)*"
NUMBER = r"[-+]?(?:\d+(?:[.:,]\d+)*|(?:[.:,]\d+)+)"

# Abbreviations that keep their dot wherever they stand, and those that keep it only before a number.
ABBREVIATIONS = (
    "mr mrs ms dr prof st ave blvd rd ct sq rev hon jr sr inc co corp ltd bros vs v etc al cf ft "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tues tue wed thu thurs fri "
    "dept est ext univ gov rep reps sen sens gen col lt sgt capt cmdr adm maj cpl messrs mme supt"
).split()
CAPITAL_ABBREVIATIONS = "Calif Penn penn Mass Conn Pa La Tex".split()
BEFORE_NUMBER = "no nos art p pp".split()

_abbreviation = "|".join(f"(?i:{word})" for word in ABBREVIATIONS)
_capital = "|".join(CAPITAL_ABBREVIATIONS)
_before_number = "|".join(BEFORE_NUMBER)

# name -> pattern; group 1 is the token.
RULES: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "space": r"(\s+)",
        "tag": r"(<[!?/]?[A-Za-z][^<>\n]*>)",
        "url": r"(https?://[^\s\"<>|]+[^\s\"<>|.!?,;:)}'-])",
        "likely url": r"((?:[^\s\"`'<>|.!?,;:&/()-]+\.)+(?:com|net|org|edu)(?:/[^\s\"<>|]+[^\s\"<>|.!?,;:-])?)",
        "email": r"([a-zA-Z0-9][^\s\"<>|()&]*@(?:[^\s\"<>|(){}.&]+\.)*[^\s\"<>|(){}.&]+)",
        "handle": r"([@#][A-Za-z]+)",
        "can not": r"((?i:can)(?=(?i:not)\b))",
        "two words": r"((?i:gon|wan)(?=(?i:na)\b)|(?i:got)(?=(?i:ta)\b)|(?i:lem|gim)(?=(?i:me)\b))",
        "'t is": rf"({APOS}[tT])(?=(?i:is|was)\b)",
        "before n't": rf"({LETTER}+?)(?=[nN]{APOS}[tT](?!{ALNUM}))",
        "n't": rf"([nN]{APOS}[tT])(?!{ALNUM})",
        "'s": rf"({APOS}(?i:s|m|d|ll|re|ve))(?!{ALNUM})",
        "elided": rf"([dDoOlL]{APOS}{LETTER}{ALNUM}*(?:-{ALNUM}+)*)",
        "leading apostrophe": rf"({APOS}(?i:n{APOS}?|em|till?|cause|\d\ds?)(?!{ALNUM}))",
        "word": rf"({WORD})",
        "hyphened": rf"({ALNUM}+(?:[-_]{ALNUM}+)+)",
        "slashed": rf"({ALNUM}+(?:-{ALNUM}+)*(?:\\?/{ALNUM}+(?:-{ALNUM}+)*){{1,2}})",
        "ordinal": rf"(\d+{LETTER}{ALNUM}*)",
        "ampersand": r"([A-Z]+(?:&[A-Z]+)+)",
        "fraction": r"((?:\d{1,4}[- ])?\d{1,4}\\?/\d{1,4})(?!\d)",
        "date": r"(\d{1,2}[-/]\d{1,2}[-/]\d{2,4})(?!\d)",
        "phone": r"(\(\d{3}\)[ -]?\d{3}[- ]\d{4}|\d{3}[- .]\d{3}[- .]\d{4}|\d{3}-\d{4})(?!\d)",
        "number": rf"({NUMBER})",
        "acronym": rf"({LETTER}(?:\.{LETTER})+\.)",
        "initial": rf"({LETTER}\.)(?!{ALNUM}{{2}})",
        "abbreviation": rf"((?:{_abbreviation}|{_capital})\.)",
        "before number": rf"((?i:{_before_number})\.)(?=\s+\d)",
        "c++": r"([cC]\+\+|[cCfF]#)",
        "currency": r"((?:US|us|[ACac])?\$)",
        "smiley": r"([<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]])",
        "ellipsis": r"(\.\.\.+|\. \.(?: \.)+|…)",
        "dashes": r"(-{2,}|[–—―])",
        "marks": r"([?!]+)",
        "stars": r"(\*+|_+|~+)",
        "quotes": r"(``|''|[\"“”‘’`'])",
        "any": r"(\S)",
    }.items()
}
