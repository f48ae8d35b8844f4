"""Events as messages of a broker: the path of a message that went through many repositories."""

from __future__ import annotations

import pytest

from ropewalk.bridge.brokers import forms
from ropewalk.bridge.brokers.port import Incoming
from ropewalk.gitlog.core.layout import MESSAGES


@pytest.mark.parametrize(("came", "kept"), [(0, 0), (1, 1), (31, 31), (32, 31)])
def test_long_path_still_names_the_publisher(log, came, kept):
    through, origin = [f"{n:032x}" for n in range(came)], "f" * 32
    message = Incoming("7", b"{}", {forms.PATH: ",".join(through)})
    log.append("t", forms.document(message, "ORDERS", "5c6d1a2b"), layout=MESSAGES)
    (event,) = log.read("t", layout=MESSAGES).events
    headers = forms.outgoing(event, "messages/t", origin).headers
    assert forms.path_of(headers) == [*through[came - kept :], origin]
