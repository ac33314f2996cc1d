"""What a start that failed says."""

from supervisor.announce import cause_of

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in <module>',
    "    load()",
    "    ^^^^^^",
    "x.FirstPoliciesError: policies.toml: Invalid value (at line 3, column 1)",
]


def test_a_traceback_is_told_by_its_cause() -> None:
    """The last line, with what follows it; cut off before its end it keeps the last frame."""
    assert cause_of(["a warning", *TRACEBACK]) == TRACEBACK[-1:]
    assert cause_of([*TRACEBACK, "aborted"]) == [TRACEBACK[-1], "aborted"]
    assert cause_of(TRACEBACK[:3]) == TRACEBACK[1:3]


def test_other_last_words_stay_whole() -> None:
    """What a native library printed."""
    assert cause_of(["a", "b"]) == ["a", "b"]
    assert cause_of([]) == []
