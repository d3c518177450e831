"""NVML's and the driver's figures of memory, before and after an allocation of 1 GiB."""
import pynvml
import torch

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
for _ in range(2):
    info = pynvml.nvmlDeviceGetMemoryInfo(device)
    free, total = torch.cuda.mem_get_info()
    print(f"NVML {info.total >> 20} MiB, {info.used >> 20} used; CUDA {total >> 20} MiB, {free >> 20} free")
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
