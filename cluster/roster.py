"""Who is on the shard, in which line and with which pages: where sequences change their state."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from cluster.block_tables import BlockTables
from cluster.errors import IllegalTransition, LedgerBroken
from cluster.sequences import Family, Place, State, Tracked, expendable
from cluster.steps import Sequence


class Roster:
    """All families, and two lines of sequences in order of class and arrival: running and waiting.

    A sequence that was preempted or paused comes back into the waiting line at its own place, which
    is before all of its class that have not run yet.
    """

    def __init__(self, tables: BlockTables, places: int) -> None:
        self.families: dict[str, Family] = {}
        self.running: list[Tracked] = []
        self.waiting: list[Tracked] = []
        self.preemptions = 0
        self.pauses = 0
        self._tables = tables
        self._places = places
        self._ended: list[Family] = []

    def enter(self, family: Family) -> None:
        """Take a family in; its leader waits. Raises IllegalTransition where its id is here."""
        request_id = family.request.request_id
        if request_id in self.families:
            raise IllegalTransition(f"request {request_id} is here already")
        self.families[request_id] = family
        insort(self.waiting, family.members[family.leader], key=_order)

    def living(self, sequence: Sequence) -> Tracked | None:
        """Found by identity: its id may have been cancelled and admitted again meanwhile."""
        family = self.families.get(sequence.request.request_id)
        tracked = family.members.get(sequence.choice) if family else None
        return tracked if tracked is not None and tracked.sequence is sequence else None

    def start(self, waiting: Tracked, reserve: int, places: int = 0) -> bool:
        """Run it if it could start."""
        if not self.could_start(waiting, reserve, places):
            return False
        self._tables.open(waiting)
        _take_out(self.waiting, waiting)
        self._run(waiting)
        return True

    def could_start(self, waiting: Tracked, reserve: int, places: int = 0) -> bool:
        """Whether there are a place beside `places`, and pages for it and `reserve`. Alone, it
        needs no reserve."""
        reserve = reserve if self.running else 0
        return self.has_place(places) and self._tables.has_room(waiting, reserve)

    def has_place(self, beside: int = 0) -> bool:
        """Whether one more can run, beside so many that will."""
        return len(self.running) + beside < self._places

    def fork_from(self, leader: Tracked) -> None:
        """Followers run from the leader's pages while there are places, else wait on their own."""
        for follower in leader.family.awaiting():
            if self.has_place():
                self._tables.fork(leader, follower)
                self._run(follower)
            else:
                self._wait(follower)

    def victim_behind(self, tracked: Tracked, spared: set[Tracked]) -> Tracked | None:
        """Of those that run behind `tracked` and are not spared, the newest of the lowest class."""
        behind = self.running[bisect_right(self.running, tracked.order, key=_order) :]
        return max((one for one in behind if one not in spared), key=expendable, default=None)

    def preempt(self, victim: Tracked) -> None:
        """Take pages and place away; all it knows stays, to be computed again."""
        self._set_back(victim, State.PREEMPTED)
        self.preemptions += 1

    def pause(self, victim: Tracked) -> None:
        """The same, because of the watermark: it comes back when that allows it."""
        self._set_back(victim, State.PAUSED)
        self.pauses += 1

    def end(self, tracked: Tracked) -> None:
        """Let go of a sequence in any state; the last of a family ends the request."""
        if tracked.state is State.RUNNING:
            _take_out(self.running, tracked)
        elif tracked.state is not State.AWAITING_LEADER:
            _take_out(self.waiting, tracked)
        tracked.move(State.FINISHED)
        self._tables.close(tracked)
        tracked.family.produced += tracked.sequence.output_len
        self._leave(tracked.family, tracked.sequence.choice)

    def drain_ended(self) -> list[Family]:
        """The requests that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def verify(self) -> None:
        """Raise LedgerBroken unless lines, states, leaders and block tables agree."""
        members = [one for family in self.families.values() for one in family.members.values()]
        self._tables.verify(members)
        _verify_line(self.running, members, {State.RUNNING})
        _verify_line(self.waiting, members, {State.WAITING, State.PAUSED, State.PREEMPTED})
        if len(self.running) > self._places:
            raise LedgerBroken(f"{len(self.running)} sequences run in {self._places} places")
        for family in self.families.values():
            _verify_leader(family)

    def _run(self, tracked: Tracked) -> None:
        tracked.move(State.RUNNING)
        insort(self.running, tracked, key=_order)

    def _set_back(self, victim: Tracked, to: State) -> None:
        victim.move(to)
        _take_out(self.running, victim)
        self._tables.close(victim)
        insort(self.waiting, victim, key=_order)
        if victim.owes_scores:
            victim.family.scores = [None]

    def _wait(self, follower: Tracked) -> None:
        follower.move(State.WAITING)
        insort(self.waiting, follower, key=_order)

    def _leave(self, family: Family, choice: int) -> None:
        del family.members[choice]
        if not family.members:
            del self.families[family.request.request_id]
            self._ended.append(family)
        elif choice == family.leader and (awaiting := family.awaiting()):
            family.leader = awaiting[0].sequence.choice
            self._wait(awaiting[0])


def _order(tracked: Tracked) -> Place:
    return tracked.order


def _take_out(line: list[Tracked], tracked: Tracked) -> None:
    """No two sequences have the same place."""
    del line[bisect_left(line, tracked.order, key=_order)]


def _verify_line(line: list[Tracked], members: list[Tracked], states: set[State]) -> None:
    expected = sorted((one for one in members if one.state in states), key=_order)
    if line != expected:
        orders = [one.order for one in line], [one.order for one in expected]
        raise LedgerBroken(f"in line {orders[0]}, by state {sorted(states)} {orders[1]}")


def _verify_leader(family: Family) -> None:
    leader = family.members.get(family.leader)
    if family.awaiting() and (leader is None or leader.state is State.AWAITING_LEADER):
        raise LedgerBroken(f"request {family.request.request_id} awaits a leader it has not")
