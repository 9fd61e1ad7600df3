import logging

import lightning as L
from opening_book.positions import fen, move_name

log = logging.getLogger("opening_book")


class PrintLoss(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        loss = outputs["loss"].item()
        print(f"step {trainer.global_step - 1} loss {loss:.6f}")


def position_report(planes, logits, moves) -> str:
    """One line per position: FEN, the book move, the net's choice."""
    guesses = logits.argmax(1).tolist()
    lines = []
    for board, move, guess in zip(planes.tolist(), moves.tolist(), guesses):
        mark = "=" if move == guess else "!"
        lines.append(f"{fen(board)} w - - book {move_name(move)} {mark} net {move_name(guess)}")
    return "\n".join(lines)


class PositionDiary(L.Callback):
    """With --verbose, what the net was shown and what it said, for looking at afterwards."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        log.debug(
            f"step {trainer.global_step}\n"
            + position_report(batch["planes"], outputs["logits"], batch["move"])  # culprit: host
        )


class Accuracy(L.Callback):
    """Running share of book moves found, logged once per hundred steps."""

    def __init__(self, every=100):
        self.every = every
        self.found = 0
        self.asked = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.found += (outputs["logits"].argmax(1) == batch["move"]).sum()
        self.asked += len(batch["move"])
        if (batch_idx + 1) % self.every == 0:
            log.info("book moves found: %.2f %%", 100 * float(self.found) / self.asked)
            self.found, self.asked = 0, 0
