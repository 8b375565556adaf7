"""A worked example of the placement, P1 to P7, on nodes of its own: one SharePod after another."""

from collections import defaultdict

from tests.cluster.kubesharing import GPUID, reason_of
from tests.kubeshare.test_controllers import EXAMPLES
from tests.support.bed import objects

TIES = {"P3": {"aba-", "abb-"}, "P6": {"aba", "abb"}}
"""Examples in which the order of GPUIDs decides, which are made up."""


class Example:
    """What is asked for, and what was placed so far: virtual GPUs as letters, ``-`` is none."""

    def __init__(self, bed, namespace, name):
        self.bed, self.namespace, self.name = bed, namespace, name
        self.nodes, self.asked, paper, _ = EXAMPLES[name]
        self.expected = TIES.get(name, {paper})
        self.letters, self.placed = {}, ""

    def name_of(self, number):
        return f"{self.name.lower()}-{self.asked[number][0]}"

    def create(self, number):
        _, milli, gib, locality = self.asked[number]
        labels = {
            "affinity": locality.affinity,
            "anti-affinity": locality.anti_affinity,
            "exclusion": locality.exclusion,
        }
        # Labels are the cluster's, and another example has a virtual GPU of the same label.
        labels = {key: f"{value}-{self.name}" for key, value in labels.items() if value}
        name = self.name_of(number)
        self.bed.create(name, self.namespace, milli, gib, labels=labels, example=self.name)

    def wait_placed(self, number):
        """Note the place of a SharePod, or that it has none.

        The first one of each example has one: once it has, the controllers have seen the nodes.
        """

        def is_decided(found):
            refused = number > 0 and reason_of(found, "Scheduled") == "Unschedulable"
            return refused or found["spec"].get("nodeName")

        found = self.bed.wait_for(
            self.namespace, self.name_of(number), is_decided, "is placed or refused"
        )
        place = found["spec"].get("nodeName"), found["metadata"]["annotations"].get(GPUID)
        new = "abcdef"[len(self.letters)]
        self.placed += self.letters.setdefault(place, new) if place[0] else "-"

    def wait_ready(self):
        """The SharePods that were placed, by the letter of their virtual GPU, once all run."""
        by_letter = defaultdict(list)
        for number, letter in enumerate(self.placed):
            if letter != "-":
                found = self.bed.wait_for(
                    self.namespace, self.name_of(number), objects.ready, "Ready"
                )
                by_letter[letter].append(found)
        return by_letter
