"""A tensor in another process, by cudaIpcGetMemHandle."""
import torch
import torch.multiprocessing as mp


def child(queue, back):
    tensor = queue.get()
    tensor += 1
    back.put(float(tensor.sum()))
    del tensor


if __name__ == "__main__":
    mp.set_start_method("spawn")
    queue, back = mp.Queue(), mp.Queue()
    process = mp.Process(target=child, args=(queue, back))
    process.start()
    first = torch.ones(1 << 20, device="cuda")
    tensor = torch.ones(1 << 20, device="cuda")
    queue.put(tensor)
    print(back.get(timeout=60), float(tensor.sum()), float(first.sum()))
    process.join()
