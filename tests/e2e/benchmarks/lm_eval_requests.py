"""What lm-eval 0.4.13 sends for some rows of the cases, made with its own templates and functions.

By benchmark: the id of a sample, the context and the continuations. WinoGrande has several contexts.
"""

REQUESTS: dict[str, tuple[str, str | list[str], list[str]]] = {
    "arc_easy:likelihood": (
        "MINE_2",
        "Question: What do plants take from the air?\nAnswer:",
        [" salt", " sand", " carbon dioxide"],
    ),
    "arc_challenge:likelihood": (
        "MINE_2",
        "Question: What do plants take from the air?\nAnswer:",
        [" salt", " sand", " carbon dioxide"],
    ),
    "commonsense_qa:likelihood": (
        "c1",
        "Question: Where do you keep milk?\nA. oven\nB. desk\nC. shoe\nD. fridge\nE. car\nAnswer:",
        [" A", " B", " C", " D", " E"],
    ),
    "hellaswag:likelihood": (
        "1",
        "Baking bread: How to bake bread. Mix flour and water. Use warm water. Then john",
        ["  kneads the dough.", " sings. loudly.", " sleeps.", " flies away."],
    ),
    "medmcqa:likelihood": (
        "m-1",
        "Question: Bones of an arm do not include\nChoices:\nA. Ulna\nB. Femur\nC. Radius\nD. \nAnswer:",
        [" A", " B", " C", " D"],
    ),
    "medqa:likelihood": (
        "test-00000",
        "Question: A child has a fever of 40.0 C. What helps?\n"
        "A. Sugar\nB. Vitamin C\nC. Salt\nD. Paracetamol\nAnswer:",
        [" A", " B", " C", " D"],
    ),
    "mmlu:likelihood": (
        "2",
        "The following are multiple choice questions (with answers) about high school us history.\n\n"
        "Who wrote the first law?\nStatement 1 | It was A.\nA. Ann\nB. \nC. Both\nD. I\nAnswer:",
        [" A", " B", " C", " D"],
    ),
    "mmlu:likelihood_5shot": (
        "1",
        (
            "The following are multiple choice questions (with answers) about anatomy.\n\n"
            "How many is 1 plus 1 in anatomy?\nA. 1\nB. 2\nC. none\nD. all\nAnswer: B\n\n"
            "How many is 2 plus 2 in anatomy?\nA. 2\nB. 4\nC. none\nD. all\nAnswer: B\n\n"
            "How many is 3 plus 3 in anatomy?\nA. 3\nB. 6\nC. none\nD. all\nAnswer: B\n\n"
            "How many is 4 plus 4 in anatomy?\nA. 4\nB. 8\nC. none\nD. all\nAnswer: B\n\n"
            "How many is 5 plus 5 in anatomy?\nA. 5\nB. 10\nC. none\nD. all\nAnswer: B\n\n"
            "Which organ pumps blood?\nA. The liver\nB. The heart\nC. The skin\nD. A lung\nAnswer:"
        ),
        [" A", " B", " C", " D"],
    ),
    "piqa:likelihood": (
        "1",
        "Question: open a jar\nAnswer:",
        [" Turn the lid.", " Turn the table."],
    ),
    "pubmedqa:likelihood": (
        "101",
        "Abstract: We gave tea to 10 people.\nEight did not sleep.\nQuestion: Does tea keep people awake?\nAnswer:",
        [" yes", " no", " maybe"],
    ),
    "sciq:likelihood": (
        "1",
        "Bees collect nectar. They make honey.\nQuestion: What do bees make?\nAnswer:",
        [" wool", " silk", " milk", " honey"],
    ),
    "social_iqa:likelihood": (
        "1",
        "Q: Kim lost the keys. How does Kim feel?\nA:",
        [" glad", " proud", " worried"],
    ),
    "winogrande:likelihood": (
        "2",
        ["Ann thanked Eve, so it was Ann", "Ann thanked Eve, so it was Eve"],
        [" 's idea."],
    ),
}
