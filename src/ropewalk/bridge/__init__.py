"""Where engines meet each other and the outside: mirrors, brokers, webhooks and CloudEvents."""

from ropewalk.bridge.webhooks.forms import check_signature

__all__ = ["check_signature"]
