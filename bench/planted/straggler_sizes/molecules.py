"""Molecules as graphs: a few are large, most are small."""

from dataclasses import dataclass

import torch


@dataclass
class Molecule:
    atoms: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor
    solubility: float


@dataclass
class Batch:
    """Several molecules side by side, as one graph."""

    atoms: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor
    owner: torch.Tensor
    solubility: torch.Tensor
    count: int


def make_molecules(count, kinds, seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = 8 + (90 * torch.rand(count, generator=generator).pow(2)).long()
    return [make_molecule(int(size), kinds, generator) for size in sizes]


def make_molecule(size, kinds, generator):
    atoms = torch.randint(kinds, (size,), generator=generator)
    chain = torch.arange(size - 1)
    extra = torch.randint(size, (2, size), generator=generator)
    one = torch.cat([chain, extra[0]])
    other = torch.cat([chain + 1, extra[1]])
    solubility = float((atoms < kinds // 4).float().mean() * 4)
    return Molecule(atoms, torch.cat([one, other]), torch.cat([other, one]), solubility)


def join(molecules):
    first = torch.tensor([0, *(len(each.atoms) for each in molecules)]).cumsum(0)
    owner = [torch.full((len(each.atoms),), at) for at, each in enumerate(molecules)]
    starts = first[:-1].tolist()
    return Batch(
        atoms=torch.cat([each.atoms for each in molecules]),
        sources=torch.cat([m.sources + start for m, start in zip(molecules, starts, strict=True)]),
        targets=torch.cat([m.targets + start for m, start in zip(molecules, starts, strict=True)]),
        owner=torch.cat(owner),
        solubility=torch.tensor([each.solubility for each in molecules]),
        count=len(molecules),
    )
