"""Records `train_memory`: four training steps with the profiler's memory, and PyTorch's own
figures of it. Writes both into the current folder.

python3 train_memory.py
"""
import gzip
import json
import warnings

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

warnings.simplefilter("ignore", FutureWarning)
torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.second = nn.Linear(256, 10)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def step():
    x = torch.randn(128, 64)
    y = torch.randint(0, 10, (128,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


with profile(
    activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True
) as prof:
    for _ in range(4):
        step()
        prof.step()
prof.export_chrome_trace("train_memory.json.gz")
# Sizes by category after each time; and each action: time, action, bytes, category.
prof.export_memory_timeline("timeline.json", "cpu")
prof.export_memory_timeline("timeline.raw.json.gz", "cpu")
# Categories: parameters, state of the optimizer, inputs, temporaries, activations, gradients,
# details of autograd, others.
sizes = json.load(open("timeline.json"))[1]
at_peak = max(sizes, key=sum)
with gzip.open("timeline.raw.json.gz") as raw:
    actions = json.load(raw)
PREEXISTING, CREATE, DESTROY = 1, 2, 4


def sums(action):
    its = [abs(one[2]) for one in actions if one[1] == action]
    return {"count": len(its), "bytes": sum(its)}


figures = {
    "preexisting": sums(PREEXISTING)["bytes"],
    "peak": sum(at_peak),
    "optimizer_at_peak": at_peak[2],
    "inputs_at_peak": at_peak[3],
    "end": sum(sizes[-1]),
    "created": sums(CREATE),
    "destroyed": sums(DESTROY),
    "rows": [
        {"name": row.key, "self": row.self_cpu_memory_usage, "total": row.cpu_memory_usage}
        for row in prof.key_averages()
        if not row.is_user_annotation
    ],
}
with gzip.open("train_memory.figures.json.gz", "wt") as out:
    json.dump(figures, out)
