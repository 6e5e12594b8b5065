"""A language is told from others that share its script; too little text tells nothing."""

from __future__ import annotations

import pytest

from fewbit.evaluate.tasks.ifeval_language import LANGUAGES, is_mostly_latin, language_of

TEXTS = {
    "en": "The boats of the village are on the beach and the people are at home.",
    "de": "Die Boote des Dorfes liegen am Strand, und die Leute sind nicht zu Hause.",
    "fr": "Les bateaux du village sont sur la plage et les gens ne sont pas à la maison.",
    "es": "Los barcos del pueblo están en la playa y la gente no está en casa.",
    "it": "Le barche del paese sono sulla spiaggia e la gente non è a casa con il cane.",
    "pt": "Os barcos da aldeia estão na praia e as pessoas não estão em casa.",
    "nl": "De boten van het dorp liggen op het strand en de mensen zijn niet thuis.",
    "sv": "Båtarna i byn ligger på stranden och det är inte många som är hemma.",
    "fi": "Kylän veneet ovat rannalla, ja ihmiset eivät ole kotona, mutta hän on.",
    "sw": "Mashua ya kijiji ziko pwani na watu hawako nyumbani kwa sababu ya mvua.",
    "vi": "Thuyền của làng ở trên bãi biển và người dân không có ở nhà.",
    "ru": "Лодки деревни стоят на берегу, и люди не дома, потому что это праздник.",
    "bg": "Лодките на селото са на брега и хората не са вкъщи, защото е празник.",
    "uk": "Човни села стоять на березі, і люди не вдома, тому що це свято.",
    "ar": "قوارب القرية على الشاطئ والناس ليسوا في البيت لأن هذا عيد من الأعياد",
    "fa": "قایق‌های روستا در ساحل هستند و مردم در خانه نیستند که این یک جشن است",
    "ur": "گاؤں کی کشتیاں ساحل پر ہیں اور لوگ گھر میں نہیں ہیں",
    "hi": "गाँव की नावें किनारे पर हैं और लोग घर में नहीं हैं।",
    "mr": "गावातील होड्या किनाऱ्यावर आहेत आणि लोक घरी नाहीत.",
    "ne": "गाउँका डुङ्गाहरू किनारमा छन् र मानिसहरू घरमा छैनन् तर यो चाड हो।",
    "bn": "গ্রামের নৌকাগুলি সৈকতে আছে।",
    "gu": "ગામની હોડીઓ કિનારે છે.",
    "pa": "ਪਿੰਡ ਦੀਆਂ ਕਿਸ਼ਤੀਆਂ ਕੰਢੇ ਤੇ ਹਨ।",
    "ta": "கிராமத்தின் படகுகள் கரையில் உள்ளன.",
    "te": "గ్రామం పడవలు ఒడ్డున ఉన్నాయి.",
    "kn": "ಹಳ್ಳಿಯ ದೋಣಿಗಳು ದಡದಲ್ಲಿವೆ.",
    "ml": "ഗ്രാമത്തിലെ വള്ളങ്ങൾ തീരത്താണ്.",
    "th": "เรือของหมู่บ้านอยู่บนชายหาด",
    "ko": "마을의 배들은 해변에 있다.",
    "ja": "村の船は浜にあります。",
    "zh": "村里的船在海滩上。",
    "el": "Οι βάρκες του χωριού είναι στην παραλία.",
    "he": "הסירות של הכפר על החוף.",
}


def test_every_language_has_a_text():
    assert set(TEXTS) == set(LANGUAGES)


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_sentence_tells_its_language(code):
    assert language_of(TEXTS[code]) == code


def test_names_of_another_script_may_stand_in_it():
    assert language_of(f"{TEXTS['ru'] * 2} NASA") == "ru"
    assert language_of(f"{TEXTS['ru']} {TEXTS['en']}") is None


@pytest.mark.parametrize("text", ["", "123 !", "Zxqv wrtp"])
def test_what_tells_nothing(text):
    assert language_of(text) is None


def test_capitals_are_latin_whatever_they_say():
    assert is_mostly_latin("THE SEA") and not is_mostly_latin("МОРЕ") and not is_mostly_latin("1")
