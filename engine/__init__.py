"""What n-gram drafting, multi-token prediction and speculative prefill share."""

from .kernel_cache import install as _install

_install()
