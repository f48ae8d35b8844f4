"""The reducers that ship."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.making import observed

from ropewalk.kernel import jcs
from ropewalk.ledger.replay.reducers import REDUCERS, FoldContext

HERE = FoldContext("ea.core", 5, 0)


def folded(name, *events):
    reducer = REDUCERS[name]
    state = reducer.initial()
    for event in events:
        state = reducer.fold(state, event, HERE)
    return state


def said(kind, payload, timestamp="2024-11-01T12:00:00Z"):
    return observed(event_type=kind, payload=payload, timestamp=timestamp).value


def test_counts_are_by_class_and_type():
    state = folded("counts", observed(1).value, observed(2).value, observed(event_type="b").value)
    assert state == {"total": 3, "by_class": {"Observation": 3}, "by_type": {"test.seen": 2, "b": 1}}


def test_initial_states_are_not_shared():
    folded("counts", observed(1).value)
    assert REDUCERS["counts"].initial()["total"] == 0


def test_the_last_write_wins_by_its_authors_time():
    early, late = "2024-11-01T12:00:00.5Z", "2024-11-01T12:00:00.50001Z"
    one = said("register.set", {"key": "a", "value": 1}, late)
    two = said("register.set", {"key": "a", "value": 2}, early)
    assert folded("registers", one, two)["a"]["value"] == 1
    assert folded("registers", two, one)["a"]["value"] == 1
    again = said("register.set", {"key": "a", "value": 3}, late)
    assert folded("registers", one, again)["a"]["value"] == 3


def test_a_cleared_register_is_not_brought_back_by_an_older_write():
    gone = said("register.cleared", {"key": "a"}, "2024-11-01T12:00:02Z")
    old = said("register.set", {"key": "a", "value": 1}, "2024-11-01T12:00:01Z")
    new = said("register.set", {"key": "a", "value": 2}, "2024-11-01T12:00:03Z")
    assert "value" not in folded("registers", gone, old)["a"]
    assert folded("registers", gone, new)["a"]["value"] == 2


def test_deployments_say_what_runs_where_now():
    def deployed(status, version, service="web", environment="prod"):
        return said(
            f"deployment.{status}", {"environment": environment, "service": service, "version": version}
        )

    state = folded(
        "deployments",
        deployed("success", "1"),
        deployed("failure", "2"),
        deployed("success", "3", environment="stage"),
        deployed("success", "4", service="api"),
        deployed("revert", "0"),
        deployed("removed", "4", service="api"),
        said("deployment.success", {"service": "web"}),
        said("deployment.success", "nothing"),
        said("other", {"environment": "prod", "service": "web", "version": "9"}),
    )
    assert {env: {k: v["version"] for k, v in each.items()} for env, each in state.items()} == {
        "prod": {"web": "0"},
        "stage": {"web": "3"},
    }
    assert folded("deployments", deployed("success", "1"), deployed("removed", "1")) == {}


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(sorted(REDUCERS)),
    st.lists(
        st.tuples(
            st.sampled_from(
                ["deployment.success", "deployment.removed", "register.set", "register.cleared", "x"]
            ),
            values | st.fixed_dictionaries({"environment": values, "service": values, "key": values}),
        ),
        max_size=8,
    ),
)
def test_no_payload_breaks_a_reducer_and_states_are_json(name, events):
    state = folded(name, *(said(kind, payload) for kind, payload in events))
    assert jcs.parse(jcs.encode(state)) == state
