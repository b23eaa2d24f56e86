"""VAT: virtual adversarial training (Miyato et al., 2016), appendix A of the SALT paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .salt import VirtualGame


@dataclass(kw_only=True, eq=False)
class VAT(VirtualGame):
    """SALT's game without the leader–follower interaction: δ^K is a constant to the leader.

    Its regularizer needs no labels, so unlabelled batches are welcome.
    """

    name: ClassVar[str] = "vat"
