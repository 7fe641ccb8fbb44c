"""The trained methods by name: a new method is one file and one line here."""

from __future__ import annotations

from ctxgcd.methods.full import Full
from ctxgcd.methods.gcd import GCD
from ctxgcd.methods.method import Method
from ctxgcd.methods.simgcd import SimGCD

TRAINED: dict[str, type[Method]] = {"gcd": GCD, "simgcd": SimGCD, "full": Full}
