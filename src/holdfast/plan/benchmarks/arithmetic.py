"""Word problems with a number as the answer: GSM8K, GSM-Symbolic, MGSM."""

import re

import msgspec

from holdfast.plan.benchmarks.card import NOTHING_FLATTERS, Benchmark
from holdfast.records import Row

_MARKS = re.compile(r"<<[^<>]*>>")
_STRICT = {"regex": {"pattern": r"####[ *_`]*+(?:\\?[$])?(?:\\[$])?([-\u2212]?\\?[$]?[0-9.,]+)"}}
"""`#### 18`, also with emphasis or a currency: `#### **18**`, `#### $\\$18$`."""
_SCORERS = [{"numeric": {"name": "flexible"}}, {"numeric": {"extract": _STRICT, "name": "strict"}}]
_PROMPT = (
    "Solve the problem step by step. End with one line: `#### N`, where N is the answer as a number.\n\n{question}"
)


def _gsm8k(row: Row) -> Row:
    """The last line of an answer is `#### 1,234`; `<<16-3=13>>` are marks for a calculator."""
    solution, found, number = row["answer"].rpartition("####")
    if not found:
        raise ValueError("the answer has no line with ####")
    reasoning = _MARKS.sub("", solution).strip()
    target = number.strip().replace(",", "")
    return {
        "question": row["question"],
        "target": target,
        "solution": f"{reasoning}\n#### {target}",
        "answer": row["answer"],
    }


_GSM8K = Benchmark(
    name="gsm8k",
    title="GSM8K: word problems of primary school",
    source="Cobbe et al. 2021, Training Verifiers to Solve Math Word Problems",
    licence="MIT",
    samples=1319,
    metric="flexible",
    columns=("question", "answer"),
    convert=_gsm8k,
    task={
        "dataset": {
            "hub": "openai/gsm8k",
            "config": "main",
            "split": "test",
            "revision": "cc7b047b6e5bb11b4f1af84efc572db110a51b3c",
            "input": "question",
            "target": "target",
            "shuffle": {"seed": 1},
        },
        "prompt": _PROMPT,
        "scorers": _SCORERS,
        "counts": NOTHING_FLATTERS,
    },
    differs="No examples and an instruction, where lm-eval shows 5 examples (see gsm8k:5shot).",
)

# A base model continues with a question of its own, whose numbers do not count.
_BEFORE_NEXT = {"regex": {"pattern": r"(?s)\A(.*?)(?:Question:|\Z)", "first": True}}
_FIRST_STRICT = {"regex": {**_STRICT["regex"], "first": True}}

_GSM8K_5SHOT = msgspec.structs.replace(
    _GSM8K,
    name="gsm8k:5shot",
    title="GSM8K with 5 examples, in the format of lm-eval",
    task={
        **_GSM8K.task,
        "prompt": "Question: {question}\nAnswer:",
        "fewshot": {"split": "train", "n": 5, "pick": "first", "style": "text", "answer": "{answer}"},
        "scorers": [
            {"numeric": {"extract": _BEFORE_NEXT, "name": "flexible"}},
            {"numeric": {"extract": [_BEFORE_NEXT, _FIRST_STRICT], "name": "strict"}},
        ],
    },
    differs=(
        "The format is byte-equal to lm-eval 0.4.13, task gsm8k: `Question: …`, `Answer:`, a space, the whole answer "
        "of the source, and an empty line between examples. The examples are others: the first 5 of the train split "
        "for every sample, where lm-eval draws 5 at random. lm-eval stops the server at `Question:`; here the text "
        "after it is ignored. Numbers are compared by value, so 18.00 equals 18; lm-eval compares text."
    ),
)


def _gsm_symbolic(row: Row) -> Row:
    """`id` numbers the templates, `instance` the problems made from one of them. The canary is left out."""
    template, instance = str(row["id"]), str(row["instance"])
    return {
        "id": f"{template}-{instance}",
        **_gsm8k(row),
        "instance": instance,
        "original_id": str(row.get("original_id", template)),
    }


def _symbolic(name: str, config: str, samples: int, about: str) -> Benchmark:
    return Benchmark(
        name=name,
        title=f"GSM-Symbolic: problems of GSM8K with other names and numbers{about}",
        source="Mirzadeh et al. 2024, GSM-Symbolic: Understanding the Limitations of Mathematical Reasoning",
        licence="CC-BY-NC-ND-4.0",
        samples=samples,
        metric="flexible",
        columns=("id", "instance", "question", "answer"),
        convert=_gsm_symbolic,
        task={
            "dataset": {
                "hub": "apple/GSM-Symbolic",
                "config": config,
                "split": "test",
                "revision": "93b5b3758d9d9841ffe81d6cd2ae2b030685b078",
                "id": "id",
                "input": "question",
                "target": "target",
                "group": "original_id",
                "shuffle": {"seed": 1, "by": "instance"},
            },
            "prompt": _PROMPT,
            "scorers": _SCORERS,
            "counts": NOTHING_FLATTERS,
            "macro": "instance",
        },
        differs="No examples and an instruction, where the paper shows 8 examples of GSM8K with reasoning.",
        unverified=("the number of samples", "the columns id, instance, original_id and canary"),
    )


_LANGUAGES = {
    "bn": "সমস্যাটি ধাপে ধাপে সমাধান করো। শেষ লাইনে শুধু উত্তরটি সংখ্যায় লেখো।",
    "de": "Löse die Aufgabe Schritt für Schritt. Schreibe in die letzte Zeile nur das Ergebnis als Zahl.",
    "en": "Solve the problem step by step. On the last line, write only the answer as a number.",
    "es": "Resuelve el problema paso a paso. En la última línea, escribe solo el resultado como número.",
    "fr": "Résous le problème étape par étape. Sur la dernière ligne, écris seulement le résultat en chiffres.",
    "ja": "問題を一歩ずつ解いてください。最後の行には答えの数字だけを書いてください。",
    "ru": "Реши задачу шаг за шагом. Последней строкой напиши только ответ в виде числа.",
    "sw": "Tatua swali hili hatua kwa hatua. Katika mstari wa mwisho, andika jibu tu kama namba.",
    "te": "సమస్యను దశలవారీగా సాధించండి. చివరి పంక్తిలో సమాధానాన్ని మాత్రమే సంఖ్యగా రాయండి.",
    "th": "จงแก้โจทย์ทีละขั้นตอน แล้วเขียนเฉพาะคำตอบเป็นตัวเลขในบรรทัดสุดท้าย",
    "zh": "请一步一步地解答这道题。最后一行只写答案的数字。",
}
"""The instruction of MGSM in each language: the name of the config."""
_ALONE = {"regex": {"pattern": r"\A[\s*]*+([-\u2212+]?[\s$€£¥]*+\d[\d.,' ]*+)[\s*。]*+\Z"}}


def _mgsm(row: Row) -> Row:
    """Row n of each config is the same problem. `answer` is empty in the test split."""
    language, number = row["config"], row["config_row"]
    return {
        "id": f"{language}-{number}",
        "config": language,
        "question_index": number,
        "instruction": _LANGUAGES[language],
        "question": row["question"],
        "target": str(int(row["answer_number"])),
    }


_MGSM = Benchmark(
    name="mgsm",
    title="MGSM: 250 problems of GSM8K in 11 languages",
    source="Shi et al. 2022, Language Models are Multilingual Chain-of-Thought Reasoners",
    licence="CC-BY-SA-4.0",
    samples=2750,
    metric="flexible",
    subset="config",
    columns=("question", "answer_number"),
    convert=_mgsm,
    task={
        "dataset": {
            "hub": "juletxara/mgsm",
            "config": list(_LANGUAGES),
            "split": "test",
            "revision": "refs/convert/parquet",
            "id": "id",
            "input": "question",
            "target": "target",
            "group": "question_index",
            "shuffle": {"seed": 1, "by": "config"},
        },
        "prompt": "{instruction}\n\n{question}",
        "scorers": [
            {"numeric": {"whole": True, "name": "flexible"}},
            {"numeric": {"whole": True, "extract": ["last_line", _ALONE], "name": "strict"}},
        ],
        "counts": NOTHING_FLATTERS,
        "macro": "config",
    },
    differs=(
        "The instruction is Holdfast's own, in the language of the question. Targets are compared as numbers: NeMo "
        "Evaluator 0.3.0 removes final zeros from targets, so its figures cannot be compared."
    ),
    unverified=("the licence",),
)

BENCHMARKS = [
    _GSM8K,
    _GSM8K_5SHOT,
    _symbolic("gsm_symbolic", "main", 5000, ""),
    _symbolic("gsm_symbolic:p1", "p1", 5000, ", with one more condition"),
    _symbolic("gsm_symbolic:p2", "p2", 2500, ", with two more conditions"),
    _MGSM,
]
