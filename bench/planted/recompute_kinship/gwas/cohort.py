"""A simulated cohort: families, genotypes 0/1/2 at many SNPs, a few traits."""

from dataclasses import dataclass

import torch


@dataclass
class Cohort:
    genotypes: torch.Tensor  # (people, snps), standardised
    traits: torch.Tensor  # (people, traits)
    kinship: torch.Tensor  # (people, people)


def simulate(people: int, snps: int, traits: int, families: int, seed: int) -> Cohort:
    g = torch.Generator().manual_seed(seed)
    frequency = torch.rand(snps, generator=g) * 0.4 + 0.1
    founders = (torch.rand(families, 2, snps, generator=g) < frequency).float()
    family = torch.randint(0, families, (people,), generator=g)
    own = (torch.rand(people, 2, snps, generator=g) < frequency).float()
    inherited = torch.rand(people, 2, snps, generator=g) < 0.5
    genotypes = torch.where(inherited, founders[family], own).sum(1)
    genotypes = (genotypes - genotypes.mean(0)) / genotypes.std(0).clamp(min=1e-3)

    kinship = genotypes @ genotypes.T / snps
    effects = torch.randn(snps, traits, generator=g) * (torch.rand(snps, 1, generator=g) < 0.02)
    signal = genotypes @ effects
    noise = torch.randn(people, traits, generator=g) * signal.std(0)
    values = signal + noise
    return Cohort(genotypes, (values - values.mean(0)) / values.std(0), kinship)
