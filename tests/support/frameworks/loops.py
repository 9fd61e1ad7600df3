"""Training loops in plain torch, one of each kind; the first argument names it."""

import sys

import kept
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

STEPS = 80


def batches():
    rows = kept.digits()
    while True:
        yield from torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)


def autocast():
    model = kept.classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _, (x, y) in zip(range(STEPS), batches()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def scaler():
    """Two optimizers, accumulated gradients, and steps that the scaler leaves out."""
    body, head = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)
    optimizers = [torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.Adam(head.parameters())]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10)
    losses = []
    for number, (x, y) in zip(range(2 * STEPS), batches()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(head(body(x).relu()), y) / 2
        if number % 50 == 7:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        losses.append(loss.item())
        if number % 2:
            for optimizer in optimizers:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
    return [*losses, scaler.get_scale()], torch.nn.ModuleList([body, head])


def accumulation():
    model = kept.classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for number, (x, y) in zip(range(4 * STEPS), batches()):
        loss = cross_entropy(model(x), y) / 4
        loss.backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


def checkpointing():
    model = kept.classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _, (x, y) in zip(range(STEPS), batches()):
        loss = cross_entropy(checkpoint(model, x, use_reentrant=False), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def average():
    model = kept.classifier()
    smooth = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for number, (x, y) in zip(range(STEPS), batches()):
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth.update_parameters(model)
        if number % 10 == 9:
            smooth.eval()
            with torch.no_grad():
                losses.append(cross_entropy(smooth(x), y).item())
        losses.append(loss.item())
    return losses, smooth


def per_sample():
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []

    def loss_of(weights, x, y):
        out = torch.func.functional_call(model, weights, (x.unsqueeze(0),))
        return cross_entropy(out, y.unsqueeze(0))

    gradients = torch.func.vmap(torch.func.grad_and_value(loss_of), in_dims=(None, 0, 0))
    for _, (x, y) in zip(range(STEPS), batches()):
        found, loss = gradients(dict(model.named_parameters()), x, y)
        for name, parameter in model.named_parameters():
            parameter.grad = found[name].mean(0).detach()
        optimizer.step()
        losses.append(loss.mean().item())
    return losses, model


def functional_optimizer():
    model = kept.classifier()
    weights = {name: each.detach() for name, each in model.named_parameters()}
    losses = []

    def loss_of(weights, x, y):
        return cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    for _, (x, y) in zip(range(2 * STEPS), batches()):
        found, loss = torch.func.grad_and_value(loss_of)(weights, x, y)
        weights = {name: each - 0.1 * found[name] for name, each in weights.items()}
        losses.append(loss.item())
    model.load_state_dict(weights)
    return losses, model


def gan():
    maker, judge = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
    makers = torch.optim.Adam(maker.parameters())
    judges = torch.optim.Adam(judge.parameters())
    losses = []
    for _, (x, _) in zip(range(STEPS), batches()):
        made = maker(torch.randn(8, 8))
        judges.zero_grad()
        loss = (judge(made.detach()) - judge(x)).mean()
        loss.backward()
        judges.step()
        makers.zero_grad()
        other = -judge(made).mean()
        other.backward()
        makers.step()
        losses += [loss.item(), other.item()]
    return losses, torch.nn.ModuleList([maker, judge])


def lbfgs():
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    losses = []
    for _, (x, y) in zip(range(STEPS), batches()):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses, model


def evaluation():
    model = kept.classifier().eval()
    losses = []
    with torch.inference_mode():
        for _, (x, y) in zip(range(2 * STEPS), batches()):
            losses.append(cross_entropy(model(x), y).item())
    return losses, model


def compiled():
    model = kept.classifier()
    step_model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for number, (x, y) in zip(range(STEPS), batches()):
        if number == 10:
            model[2].p = 0.2  # something that the compiled code was not made for
        loss = cross_entropy(step_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number % 25 == 24:
            model.eval()
            with torch.no_grad():
                losses.append(step_model(x).sum().item())
            model.train()
    # What the compiler did counts too.
    counters = torch._dynamo.utils.counters
    names = ("frames", "graph_break", "stats", "recompiles")
    losses += [value for name in names for value in counters[name].values()]
    return losses, model


kept.seed()
kept.leave(*globals()[sys.argv[1]]())
