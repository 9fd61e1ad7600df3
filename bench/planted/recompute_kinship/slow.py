"""Neural polygenic scores with a linear-mixed-model likelihood (full batch)."""

import argparse
import os

import torch
from gwas.cohort import simulate
from gwas.losses import MixedModelLoss, SparsityPenalty
from gwas.model import PolygenicNet, explained


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=1300)
    parser.add_argument("--snps", type=int, default=1500)
    parser.add_argument("--traits", type=int, default=4)
    parser.add_argument("--families", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--heritability", type=float, default=0.45)
    parser.add_argument("--sparsity", type=float, default=0.02)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 8000)))
    parser.add_argument("--seed", type=int, default=23)
    return parser.parse_args()


class Study:
    def __init__(self, args):
        self.args = args
        self.cohort = simulate(args.people, args.snps, args.traits, args.families, args.seed)
        self.net = PolygenicNet(args.snps, args.hidden, args.traits, args.dropout)
        self.likelihood = MixedModelLoss(self.cohort.kinship, args.heritability)
        self.penalty = SparsityPenalty(args.sparsity)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=args.lr, momentum=0.9)

    def step(self):
        predicted = self.net(self.cohort.genotypes)
        loss = self.likelihood(predicted, self.cohort.traits) + self.penalty(self.net.enter.weight)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), explained(predicted.detach(), self.cohort.traits).item()

    def run(self):
        for number in range(self.args.steps):
            loss, r2 = self.step()
            print(f"iteration {number} nll {loss:.6f} r2 {r2:.3f}")


if __name__ == "__main__":
    args = arguments()
    torch.manual_seed(args.seed)
    Study(args).run()
