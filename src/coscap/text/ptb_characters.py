"""The characters of Penn Treebank tokenising: which are letters, which are tokens, which vanish.

Found by asking the official tokeniser about every character of the basic plane. Outside it nothing is known
to the tokeniser: emoji vanish.
"""


def _ranges(text: str) -> str:
    """Hexadecimal ranges as the inside of a pattern's character class."""
    return "".join(
        "-".join(f"\\u{int(number, 16):04x}" for number in each.split("-")) for each in text.split()
    )


# Word characters of Python that are no letters here: numerals, and letters of newer alphabets.
_NOT_LETTERS = "_\\U00010000-\\U0010ffff" + _ranges(
    "b2-b3 b9 bc-be 37f 528-52f 560 588 5ef 860-86a 870-887 889-88e 8a1 8ad-8c9 978 980 9f4-9f9 9fc af9 "
    "b72-b77 bf0-bf2 c34 c5a c5d c78-c7e c80 cdd d04 d54-d56 d58-d5f d70-d78 de6-def e86 e89 e8c e8e-e93 e98 "
    "ea0 ea8-ea9 eac f2a-f33 1369-137c 13f5 13f8-13fd 16ee-16f8 170d 171f 17f0-17f9 1878 191d-191e 19b0-19c0 "
    "19c8-19c9 19da 1b4c 1c80-1c88 1c90-1cba 1cbd-1cbf 1cf2-1cf3 1cfa 2070 2074-2079 2080-2089 2150-2182 "
    "2185-2189 2460-249b 24ea-24ff 2776-2793 2c2f 2c5f 2cfd 3007 3021-3029 3038-303a 312e-312f 3192-3195 "
    "31bb-31bf 3220-3229 3248-324f 3251-325f 3280-3289 32b1-32bf 4db6-4dbf 9fcd-9fff a698-a69d a6e6-a6ef a78f "
    "a794-a79f a7ab-a7ca a7d0-a7d1 a7d3 a7d5-a7d9 a7f2-a7f7 a830-a835 a8fd-a8fe a9e0-a9e4 a9e6-a9fe aa7e-aa7f "
    "ab30-ab5a ab5c-ab69 ab70-abbf "
)
# No word characters of Python, but parts of a word here: accents and vowel signs.
_MARKS = _ranges(
    "2c2-2c5 2d2-2df 2e5-2eb 2ed 2ef-36f 375 378-379 384-385 3f6 483-487 55a-55f 591-5bd 5bf 5c1-5c2 5c4-5c5 "
    "5c7 615-61a 64b-65e 670 6d6-6e4 6e7-6ed 6fd-6fe 70f 711 730-74c 7a6-7b0 7eb-7f3 900-903 93c 93e-94e "
    "951-955 962-963 981-983 9bc 9be-9c4 9c7-9c8 9cb-9cd 9d7 9e2-9e3 a01-a03 a3c a3e-a4f a81-a83 abc abe-acf "
    "b82 bbe-bc2 bc6-bc8 bca-bcd c01-c03 c3e-c56 d3e-d44 d46-d48 e31 e34-e3a e47-e4e eb1 eb4-ebc ec8-ecd "
    "1885-1886 "
)
ALNUM = rf"[^\W{_NOT_LETTERS}]"
LETTER = rf"(?:[^\W\d{_NOT_LETTERS}]|[{_MARKS}])"
SOFT_HYPHEN = "\u00ad"
APOS = r"(?:['’\u0092]|&apos;)"
HYPHEN = r"[-\u058a\u2010\u2011]"
# Symbols that are tokens by themselves; a character that is in none of the rules vanishes.
SYMBOL = (
    r"[$%&*;<=>\\^`|~\u00a1\u00a5-\u00a9\u00ac\u00ae-\u00b4\u00b6-\u00b9\u00bf\u00d7\u00f7\u037e\u0387\u0589\u05be"
    r"\u05c0\u05c3\u05c6\u05f3\u05f4\u0600-\u0603\u0606-\u060c\u0614\u061b\u061e\u061f\u066a\u066d\u06d4"
    r"\u0700-\u070d\u07f6-\u07f8\u0964\u0965\u0e3f\u0e4f\u1fbd\u2016\u2017\u201a\u201e-\u2023\u2030-\u2038\u203b"
    r"\u203e-\u2042\u2044\u2070\u2074-\u207e\u2080-\u208e\u20a4\u2100\u2101\u2103-\u2106\u2108\u2109\u2114"
    r"\u2116-\u2118\u211e-\u2123\u2125\u2127\u2129\u212e\u213a\u213b\u2140-\u2144\u214a-\u214d\u214f"
    r"\u2155-\u215e\u2190-\u2bff\u3001\u3002\u3012\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
    r"\uffe0\uffe1\uffe5\uffe6/#@+_:,.!?()\[\]{}\-'\"€£¢¤\u0080\u20a0¼½¾⅓⅔…–—―\u0096\u0097"
    r"]"
)
