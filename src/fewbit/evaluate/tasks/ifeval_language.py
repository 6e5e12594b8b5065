"""Which of some thirty languages a text is in, by its script and its commonest words.

For instructions such as "answer in Finnish". Where a script belongs to one language of the list it
decides; where several share one, the language with the most of its function words in the text, of
equal ones none. Enough for whole answers; not for single words.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_SCRIPTS = {
    "kn": "KANNADA",
    "pa": "GURMUKHI",
    "gu": "GUJARATI",
    "te": "TELUGU",
    "ta": "TAMIL",
    "th": "THAI",
    "bn": "BENGALI",
    "ko": "HANGUL",
    "ml": "MALAYALAM",
    "el": "GREEK",
    "he": "HEBREW",
    "ja": "HIRAGANA",
    "zh": "CJK",
    **dict.fromkeys(("hi", "mr", "ne"), "DEVANAGARI"),
    **dict.fromkeys(("ar", "fa", "ur"), "ARABIC"),
    **dict.fromkeys(("ru", "bg", "uk"), "CYRILLIC"),
    **dict.fromkeys(("en", "de", "fr", "es", "it", "pt", "nl", "sv", "fi", "sw", "vi"), "LATIN"),
}
"""The script of each language, as Unicode's names of its letters begin."""

_WORDS = {
    "hi": "है हैं और के में की का से को पर यह नहीं कि एक लिए",
    "mr": "आहे आहेत आणि मध्ये च्या नाही हे ते एक होते साठी किंवा त्या मी ला",
    "ne": "छ छन् र मा को लागि हो हुन्छ गर्न यो पनि तर भने थियो गर्ने",
    "ar": "في من على إلى أن هذا هذه التي الذي عن مع كان لا ما هو",
    "fa": "در به از که این را با است برای آن می های یک شود و",
    "ur": "میں کے کی ہے اور سے کا کو نے پر یہ ہیں ایک نہیں لیے",
    "ru": "и в не на что с как это он она по из но для быть",
    "bg": "и в не на че с как това той за от са се да е",
    "uk": "і в не на що з як це він для та до але й є",
    "en": "the and of to in is that it for with as on are this you",
    "de": "der die das und ist nicht ein eine zu den mit für auf im sich",
    "fr": "le la les et est des un une que dans pour pas sur du qui",
    "es": "el la los y es de que en un una por con para no las",
    "it": "il la di che e è un una per non con sono del gli della",
    "pt": "o a de que e é um uma para não com os do da em",
    "nl": "de het een en is van dat niet op te voor met zijn ook aan",
    "sv": "och det att är en som för på inte med av den ett till har",
    "fi": "ja on ei se että hän oli mutta kun olen joka tai sen ovat myös",
    "sw": "ya na wa kwa ni katika la za kuwa au cha hii yake kama ili",
    "vi": "là và của có không cho một những các với được trong người này đã",
}
"""Fifteen of the commonest words of each language that shares its script with others."""

LANGUAGES = tuple(sorted(_SCRIPTS))
"""The ISO 639-1 codes that `language_of` knows."""

_SHARE = 0.8
"""Of a text's letters, how many its script must have: names and terms of others may stand in it."""


def language_of(text: str) -> str | None:
    """Return the ISO 639-1 code of a text's language; None where nothing decides.

    Kanji count for Japanese where kana stand with them.
    """
    scripts = Counter(_script(letter) for letter in text if letter.isalpha())
    if not scripts:
        return None
    if scripts["HIRAGANA"] or scripts["KATAKANA"]:
        scripts["HIRAGANA"] += scripts.pop("CJK", 0) + scripts.pop("KATAKANA", 0)
    script, count = scripts.most_common(1)[0]
    if count < _SHARE * scripts.total():
        return None
    sharing = [code for code, name in _SCRIPTS.items() if name == script]
    return sharing[0] if len(sharing) == 1 else _by_words(text, sharing)


def is_mostly_latin(text: str) -> bool:
    """Return whether most letters are Latin, as in English in capitals, whose words say less."""
    letters = [letter for letter in text if letter.isalpha()]
    return sum(_script(letter) == "LATIN" for letter in letters) > _SHARE * len(letters) > 0


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


def _by_words(text: str, codes: list[str]) -> str | None:
    counts = Counter(re.findall(r"[^\W\d_]+(?:\u094d?[\u0900-\u097f]+)*", _composed(text)))
    totals = {code: sum(counts[word] for word in _known(code)) for code in codes}
    best = max(totals.values(), default=0)
    leading = [code for code, total in totals.items() if total == best]
    return leading[0] if best and len(leading) == 1 else None


def _known(code: str) -> list[str]:
    return _composed(_WORDS[code]).split()


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text).lower()
