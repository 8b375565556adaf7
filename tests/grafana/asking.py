"""Asks Prometheus servers many questions, until the answers are right."""

from collections.abc import Callable, Iterable, Mapping

from tests.support.bed.monitoring import Prometheus
from tests.support.waiting import wait_until

Answer = list[tuple[dict[str, str], float]]


def wait_for_none(defects: Callable[[], Iterable[str]], what: str) -> None:
    """Wait until there are no defects; those that are left are in the error."""
    left: list[str] = []

    def none_left() -> bool:
        left[:] = defects()
        return not left

    wait_until(none_left, what, failures=(OSError,), context=lambda: "\n".join(left), pause=0.5)


def first_answers(server: Prometheus, questions: Mapping[str, str]) -> dict[str, Answer]:
    """By name, the first answer to each question that is not empty."""
    answers: dict[str, Answer] = {}

    def unanswered() -> Iterable[str]:
        for name, question in questions.items():
            answers[name] = answers.get(name) or server.query(question)
        return [f"{name}: {questions[name]}" for name, answer in answers.items() if not answer]

    wait_for_none(unanswered, "had an answer to each question")
    return answers
