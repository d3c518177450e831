"""A model captured into a graph, and its replays, beside allocations of other streams."""
import torch

torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, device="cuda") for _ in range(4)])
x = torch.randn(64, 512, device="cuda")
with torch.no_grad():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    total = 0.0
    for i in range(20):
        x.copy_(torch.randn(64, 512, device="cuda"))
        other = [torch.empty(1 << (10 + i % 10), device="cuda") for _ in range(8)]
        graph.replay()
        expected = model(x)
        assert torch.allclose(y, expected), (y - expected).abs().max()
        total += y.abs().sum().item()
        del other
print(f"sum {total:.3f}")
