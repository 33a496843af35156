"""Hold back configuration that was pushed past the gate if its errors would remove existing definitions.

The previous configuration stays in force until the errors are fixed.

Deliberate removals take effect. A branch is held back only if its errors would lose something: an existing stanza can
no longer be read or is rejected, or an existing stanza refers to something that no longer exists. An error in a new
stanza loses nothing: it is reported, and the rest of the configuration takes effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headgate.config.assembly.admission import Admission
from headgate.config.definitions import Branches, Key, Place
from headgate.config.layout import Layout, exchanged
from headgate.config.model import ConfigError
from headgate.config.parse import ParsedBranch, Stanza

LOOKS_MAX = 200
"""Maximum number of layouts to assemble in search of the wrong branches; then unchecked branches are held back."""


def held(landed: Layout, fresh: Branches) -> frozenset[Place]:
    """Return those of the `fresh` branches that must not take effect. `landed` is the layout in force, with the
    previous content of each of them."""
    places = {(project, branch): one for project, found in fresh.items() for branch, one in found.items()}
    return _Search(landed, places).held()


class _Search:
    def __init__(self, landed: Layout, places: Mapping[Place, ParsedBranch]) -> None:
        self._landed, self._places = landed, places
        self._fit: dict[Place, ParsedBranch] = {}
        self._looks = 0

    def held(self) -> frozenset[Place]:
        """Return the branches to hold back. Repeat until no more can be accepted, because a branch with errors may
        become valid together with another one."""
        order, before = sorted(self._places, key=lambda place: (self._landed.tenant.order[place[0]], place)), -1
        while len(self._fit) > before:
            before = len(self._fit)
            self._take([place for place in order if place not in self._fit])
        return frozenset(place for place in order if place not in self._fit)

    def _take(self, places: Sequence[Place]) -> None:
        """Accept as many branches as possible, all of them if that loses nothing."""
        if not places or self._looks >= LOOKS_MAX:
            return
        self._looks += 1
        wanted = {**self._fit, **{place: self._places[place] for place in places}}
        if not loses(self._landed, wanted):
            self._fit = wanted
        elif len(places) > 1:
            # Bisect: that finds one wrong branch among a thousand with about twenty layouts. The second half is checked
            # together with the accepted branches of the first.
            self._take(places[: len(places) // 2])
            self._take(places[len(places) // 2 :])


def loses(landed: Layout, places: Mapping[Place, ParsedBranch]) -> bool:
    """Return whether errors in these branches would remove something that the layout has."""
    branches: dict[str, dict[str, ParsedBranch]] = {}
    for (project, branch), one in places.items():
        branches.setdefault(project, {})[branch] = one
    layout = exchanged(landed, branches, keep=False)
    return _goes(landed, layout, places) or _dangles(landed, layout, places)


def _goes(landed: Layout, layout: Layout, places: Mapping[Place, ParsedBranch]) -> bool:
    """Return whether a branch with errors would have fewer admitted stanzas for some key than it has now."""
    wrong = {place for place in places if _is_wrong(layout, place)}
    if not wrong:
        return False
    assert landed.index is not None, "a layout that others are derived from has an index"
    admission = Admission(landed.tenant)
    keys = {admission.key(s) for place in wrong if (one := landed.index.parsed.get(place)) for s in one.stanzas}
    return any(_counted(landed, key, place) > _counted(layout, key, place) for key in keys for place in wrong)


def _is_wrong(layout: Layout, place: Place) -> bool:
    found = layout.findings
    refused = (errors for stanza, errors in found.refused.items() if _place(stanza) == place)
    return any(_blocking(errors) for errors in (found.files.get(place, ()), *refused))


def _counted(layout: Layout, key: Key, place: Place) -> int:
    return sum(_place(stanza) == place for stanza in layout.admitted(key))


def _dangles(landed: Layout, layout: Layout, places: Mapping[Place, ParsedBranch]) -> bool:
    """Return whether an existing stanza without errors would refer to something that no longer exists."""
    admission, before = Admission(landed.tenant), Counter[Key]()
    for stanza, errors in landed.findings.references.items():
        before[admission.key(stanza)] += _blocking(errors)
    for stanza, errors in layout.findings.references.items():
        # The derived layout shares the findings of stanzas that were not checked again.
        if landed.findings.references.get(stanza) is errors or not _blocking(errors):
            continue
        key = admission.key(stanza)
        earlier = [one for one in landed.admitted(key) if _place(one) == _place(stanza)]
        if earlier and not before[key]:
            return True
    return False


def _place(stanza: Stanza) -> Place:
    return stanza.source.project, stanza.source.branch


def _blocking(errors: Sequence[ConfigError]) -> bool:
    return any(error.severity == "error" for error in errors)
