"""Gemini's rules once more, for comparison: slow, and written from the rules alone."""

import itertools
from fractions import Fraction


class LenientOracle:
    """One GPU; times in microseconds. Every method returns the grant that follows, or None."""

    def __init__(self, now, base, least, window, shares):
        self.begin, self.base, self.least, self.window = now, base, least, window
        self.shares = shares  # name -> (request, limit) in thousandths
        self.history = []  # [name, start, end], by time of grant
        self.waiting = []
        self.last_quota = dict.fromkeys(shares, base)
        self.last_burst = dict.fromkeys(shares, 0)
        self.running = None  # name, end
        self.sleeps_until = None

    def ask(self, name, overuse, burst, now):
        mine = [entry for entry in self.history if entry[0] == name]
        if mine:
            mine[-1][2] = min(now, mine[-1][2] + overuse)
        self.last_burst[name] = burst
        self.waiting.append(name)
        if self.running and self.running[0] == name:
            self.running = None
        return self.look(now)

    def withdraw(self, name, now):
        if name in self.waiting:
            self.waiting.remove(name)
        return self.look(now)

    def reload(self, shares, now):
        self.shares = shares
        self.last_quota = dict.fromkeys(shares, self.base)
        return self.look(now)

    def look(self, now):
        if self.running and now >= self.running[1]:
            self.running = None
        self.sleeps_until = None
        if not self.waiting:
            return None
        if self.running:
            self.sleeps_until = self.running[1]
            return None
        self.history = [entry for entry in self.history if entry[2] >= now - self.window]
        name = self.choose(now)
        if name is None:
            self.sleeps_until = self.history[0][2] + self.window + 1
            return None
        self.waiting.remove(name)
        quota = self.quota(name)
        self.last_quota[name] = quota
        self.history.append([name, now, now + quota])
        self.running = name, now + quota
        if self.waiting:
            self.sleeps_until = now + quota
        return name, quota

    def choose(self, now):
        head = self.waiting[0]
        if head not in {entry[0] for entry in self.history}:
            return head
        window = min(self.window, now - self.begin)
        usage = {name: self.usage(name, now - window) for name in self.waiting}
        best = None
        for name in self.waiting:
            request, limit = (Fraction(milli, 1000) * window for milli in self.shares[name])
            if limit - usage[name] <= 0:
                continue
            missing = request - usage[name]
            rank = (0, -missing / request) if missing > 0 else (1, usage[name])
            if best is None or rank < best[0]:
                best = rank, name
        return best and best[1]

    def usage(self, name, since):
        """The parts of all entries after ``since``; between two edges nothing changes."""
        entries = [(who, max(start, since), end) for who, start, end in self.history]
        entries = [entry for entry in entries if entry[1] < entry[2]]
        edges = sorted({edge for _, start, end in entries for edge in (start, end)})
        total = Fraction()
        for left, right in itertools.pairwise(edges):
            active = [who for who, start, end in entries if start <= left and right <= end]
            if name in active:
                total += Fraction(right - left, len(active))
        return total

    def quota(self, name):
        if self.last_burst[name] == 0:
            return self.base
        half = (self.last_burst[name] + self.last_quota[name]) // 2
        return min(max(half, self.least), self.shares[name][1] * self.window // 1000)
