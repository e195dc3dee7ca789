"""How often the scripted demonstrator does what it should not. Shares of demonstrations, or of the chances to do so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Habits:
    """The mix the shipped policy was trained on; how it was chosen is in docs/seed-policy.md."""

    own_names: float = 0.6
    lists_files: float = 0.03
    quits_after_reading_long: float = 0.75
    quits_after_reading_short: float = 0.2
    wrong_first_edit: float = 0.35
    submits_wrong_edit_untested: float = 0.25
    quits_after_failed_test: float = 0.55
    misses_text: float = 0.2
    misses_again: float = 0.3
    stale_name: float = 0.05
    stale_edit_name: float = 0.28
    quits_after_stale_edit: float = 0.75
    stale_path: float = 0.06
    swaps_old_and_new: float = 0.02
    quits_after_error: float = 0.6
    submits_untested: float = 0.15
