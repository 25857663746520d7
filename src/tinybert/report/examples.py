"""Examples for the eye: quiz questions answered side by side, augmented rows beside their original."""

from difflib import SequenceMatcher

from markupsafe import Markup, escape

from tinybert.data.tasks import TASKS
from tinybert.report.results import Results
from tinybert.report.table import Table, evenly, fixed

ANSWERS_A_STUDENT = 12
VARIATIONS_A_TASK = 4


def answers_table(results: Results) -> Table:
    """Some quiz questions evenly taken, answered by the teacher and each domain student."""
    students = results.params.domain.students
    answers = {student: results.answers(student) for student in students}
    asked = min((len(found) for found in answers.values()), default=0)
    rows = []
    for index in evenly(asked, ANSWERS_A_STUDENT):
        question = answers[students[0]][index]
        cells = (question["teacher"], *(answers[student][index]["student"] for student in students))
        rows.append(
            (question["prompt"], question["answer"], *(_top_answers(cell, question["answer"]) for cell in cells))
        )
    columns = ("question", "answer", "teacher", *students)
    note = "The two likeliest pieces, with probability; the right one is marked."
    return Table("Some answers", columns, rows, names=len(columns), note=note)


def _top_answers(best: list[dict], right: str) -> Markup:
    forms = (Markup("<mark>{} {}</mark>") if piece["token"] == right else Markup("{} {}") for piece in best[:2])
    pieces = ((piece["token"], fixed(piece["probability"], 2)) for piece in best[:2])
    return Markup(", ").join(form.format(*piece) for form, piece in zip(forms, pieces, strict=True))


def variations_table(results: Results) -> Table:
    """For each task an original training row and what augmentation made of it, changed words marked."""
    rows = []
    for task in results.params.tasks.run:
        found = results.variations(task, VARIATIONS_A_TASK)
        for position, row in enumerate(found):
            parts = [marked(found[0][column], row[column]) for column in TASKS[task].columns]
            rows.append((task, "variation" if position else "original", Markup(" ⁄ ").join(parts)))
    note = "Words that the original does not have there are marked. The two sentences of a pair are parted by ⁄."
    return Table("Augmented rows", ("task", "", "text"), rows, names=3, note=note)


def marked(original: str, varied: str) -> Markup:
    """`varied` as HTML, escaped, the words in <mark> that `original` does not have at that place."""
    before, after = original.split(), varied.split()
    parts = []
    for change, _, _, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        words = escape(" ".join(after[start:end]))
        if words:
            parts.append(words if change == "equal" else Markup("<mark>{}</mark>").format(words))
    return Markup(" ").join(parts)
