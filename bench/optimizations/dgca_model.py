"""Which changes of the model were proposed? Prompts, masking, fusion, hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bench.bert import vocabulary_of
from bench.data import vocabulary
from bench.dgca import fusion, masking, prompt
from bench.dgca.model import BEST, OPTIMISED, ORIGINAL, Forms
from bench.optimizations.dgca_lab import (
    forward_trial,
    labelled_outcome,
    model_outcome,
    real_batch,
    training_trial,
)
from bench.optimizations.lab import opened
from diagnose.measure.machine.allocations import count_allocations
from diagnose.measure.machine.device import Device
from diagnose.workload import Condition, Fact, Lab, OpenTrial, Optimization, Side, Trial

MASK_RATE = 0.2
# Real text has a few characters outside the vocabulary; here every fiftieth is one.
UNKNOWN_SHARE = 0.02
# The fusion works on (samples, length, vocabulary): few samples show all there is.
FUSION_SAMPLES = 8

Step = Callable[[], Tensor]


def _component(make: Callable[[Lab], tuple[Step, list[Tensor]]]) -> dict[str, OpenTrial]:
    """One part of the model by itself: its forward pass, and forward with backward."""

    def forward(lab: Lab) -> Trial:
        step, inputs = make(lab)
        return Trial(step, lab.size.batch_size, lambda: inputs)

    def both(lab: Lab) -> Trial:
        step, inputs = make(lab)
        weights = torch.ones_like(step())

        def train() -> None:
            torch.autograd.backward(step(), weights)
            for each in inputs:
                each.grad = None

        return Trial(train, lab.size.batch_size, lambda: inputs)

    return {"part, forward": opened(forward), "part, forward and backward": opened(both)}


# --- 1: the prompts ---


def _prompts(
    form: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[Lab], tuple[Step, list[Tensor]]]:
    def make(lab: Lab) -> tuple[Step, list[Tensor]]:
        flags = real_batch(lab)["block_flag"]
        hidden = lab.size.shape["hidden"]
        torch.manual_seed(lab.seed)
        embeds = torch.randn(*flags.shape, hidden, device=lab.device, requires_grad=True)
        count = int(flags[0].sum())
        vectors = torch.randn(count, hidden, device=lab.device, requires_grad=True)
        return lambda: form(embeds, flags, vectors), [embeds, vectors]

    return make


def _prompt_side(
    text: str,
    form: Callable[[Tensor, Tensor, Tensor], Tensor],
    condition: Condition = "real data",
    *,
    steps: bool = True,
) -> Side:
    forms = replace(ORIGINAL, apply_prompt=form)
    trials = _component(_prompts(form))
    if steps:
        trials["training step"] = training_trial(forms)
    else:
        del trials["part, forward"]  # both passes together say what the equality is worth
    return Side(text, model_outcome(forms), trials, condition)


APPLY_PROMPT = Optimization(
    key="apply_prompt",
    title="Write the prompts in one operation",
    before=_prompt_side("one assignment per slot and sample", prompt.loop_prompts),
    after=_prompt_side("one scatter, each row in its own places", prompt.scatter_prompts),
    published=(
        _prompt_side("index_copy_ with sample 0's places", prompt.copy_prompts_as_published),
        _prompt_side(
            "index_copy_ with sample 0's places, on sentences of one length",
            prompt.copy_prompts_as_published,
            "constant lengths",
            steps=False,
        ),
    ),
    tolerance=1e-5,
)


# --- 2: the mask ---


def _ids_with_unknowns(lab: Lab) -> Tensor:
    ids = real_batch(lab)["input_ids"].clone()
    generator = torch.Generator().manual_seed(lab.seed)
    hit = torch.rand(ids.shape, generator=generator).to(lab.device) < UNKNOWN_SHARE
    ids[hit & (ids >= vocabulary.FIRST_CHARACTER)] = vocabulary.UNK
    return ids


def _mask_side(text: str, form: masking.MaskForm) -> Side:
    def outcome(lab: Lab) -> dict[str, Tensor]:
        generator = torch.Generator(lab.device).manual_seed(lab.seed)
        masked, mask = form(_ids_with_unknowns(lab), MASK_RATE, generator)
        return {"per sample masked ids": masked, "per sample mask": mask}

    def trial(lab: Lab) -> Trial:
        ids = _ids_with_unknowns(lab)
        generator = torch.Generator(lab.device).manual_seed(lab.seed)
        return Trial(lambda: form(ids, MASK_RATE, generator), len(ids), lambda: [ids])

    return Side(text, outcome, {"mask": opened(trial)})


DYNAMIC_MASK = Optimization(
    key="dynamic_mask",
    title="Choose the masked characters on the device",
    before=_mask_side("row by row through Python lists", masking.mask_through_tokenizer),
    after=_mask_side("compare ids on the device", masking.mask_on_device),
    published=(_mask_side("compare ids, without [UNK]", masking.mask_as_published),),
)


# --- 3: the fusion ---


def fusion_inputs(lab: Lab) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ids = real_batch(lab)["candidate_ids"].long()[:FUSION_SAMPLES]
    torch.manual_seed(lab.seed)
    logits = torch.randn(
        *ids.shape[:2], vocabulary_of(lab.size), device=lab.device, requires_grad=True
    )
    weights = torch.rand(ids.shape, device=lab.device).masked_fill(ids == vocabulary.PAD, 0.0)
    shares = (weights / weights.sum(-1, keepdim=True).clamp_min(1e-6)).requires_grad_()
    alpha = torch.rand(*ids.shape[:2], 1, device=lab.device, requires_grad=True)
    return logits, ids, shares, alpha


Fuse = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _fusion_side(text: str, fuse: Fuse, condition: Condition = "real data") -> Side:
    def outcome(lab: Lab) -> dict[str, Tensor]:
        logits, ids, shares, alpha = fusion_inputs(lab)
        fused = fuse(logits, ids, shares, alpha)
        torch.autograd.backward(fused, torch.ones_like(fused))
        return {
            "per sample log-probabilities": fused.detach(),
            **{
                f"gradient of {name}": each.grad
                for name, each in (("logits", logits), ("candidates", shares), ("gate", alpha))
                if each.grad is not None
            },
        }

    def make(lab: Lab) -> tuple[Step, list[Tensor]]:
        logits, ids, shares, alpha = fusion_inputs(lab)
        return lambda: fuse(logits, ids, shares, alpha), [logits, shares, alpha]

    part = "part, forward and backward"
    trials = {part: _component(make)[part]}
    trials["training step"] = training_trial(replace(ORIGINAL, fuse=fuse))
    return Side(text, outcome, trials, condition)


def _fusion_facts(lab: Lab) -> dict[str, Fact]:
    """What a whole step asks the allocator for with either form, counted."""
    assert lab.size.sequence_length is not None
    places = lab.size.batch_size * lab.size.sequence_length
    found: dict[str, Fact] = {"vocabulary_tensor_bytes": places * vocabulary_of(lab.size) * 4}
    for side, fuse in (("before", fusion.fuse_with_zeros), ("after", fusion.fuse_in_place)):
        with training_trial(replace(ORIGINAL, fuse=fuse), masking.mask_on_device)(lab) as trial:
            trial.step()  # the first makes the optimiser's state, which stays
            counted = count_allocations(trial.step, Device(lab.device.type))
        found[f"{side}_peak_bytes"] = counted.peak_bytes
        found[f"{side}_allocated_bytes"] = counted.allocated_bytes
    return found


GATED_FUSION = Optimization(
    key="gated_fusion",
    title="Add the candidates in place",
    before=_fusion_side("a second tensor of vocabulary size", fusion.fuse_with_zeros),
    after=_fusion_side("scatter_add_ into the first", fusion.fuse_in_place),
    published=(
        _fusion_side(
            "scatter_add_, where a candidate occurs twice",
            fusion.fuse_in_place,
            "duplicate candidates",
        ),
    ),
    tolerance=1e-4,
    facts=_fusion_facts,
)


# --- 9: hidden states of all layers ---


def _hidden_side(text: str, forms: Forms) -> Side:
    return Side(text, model_outcome(forms), {"forward": forward_trial(forms)})


HIDDEN_STATES = Optimization(
    key="hidden_states",
    title="Do not keep the hidden states of all layers",
    before=_hidden_side("output_hidden_states=True", ORIGINAL),
    after=_hidden_side("only the last layer", replace(ORIGINAL, keep_hidden_states=False)),
    tolerance=1e-5,
)


# --- 10: places and characters that are no label ---


def _labelled_side(text: str, forms: Forms) -> Side:
    trials = {"training step": training_trial(forms, masking.mask_on_device)}
    return Side(text, labelled_outcome(forms), trials)


LABELLED_ONLY = Optimization(
    key="labelled_only",
    title="Mix only the probability of each label",
    before=_labelled_side("every place and character", OPTIMISED),
    after=_labelled_side("what the loss sees", BEST),
    tolerance=1e-4,
)


# --- all of them ---


def _whole_side(text: str, forms: Forms, mask: masking.MaskForm, *, fused: bool) -> Side:
    trials = {
        "forward": forward_trial(forms),
        "training step": training_trial(forms, mask, fused=fused),
    }
    return Side(text, labelled_outcome(forms), trials)


ALL_TOGETHER = Optimization(
    key="all_together",
    title="All proven changes together",
    before=_whole_side("as first written", ORIGINAL, masking.mask_through_tokenizer, fused=False),
    after=_whole_side(
        "scatter, only the labels mixed, mask on the device, last layer only, fused AdamW",
        BEST,
        masking.mask_on_device,
        fused=True,
    ),
    tolerance=1e-4,
)
