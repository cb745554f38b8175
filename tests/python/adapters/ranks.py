"""Processes that form a gloo group, each with its own client of one server."""

import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import lossd


def run_ranks(worker, size, client, folder, *arguments):
    """worker(rank, client, *arguments) in `size` processes; what each returns, in order. `worker` is a function of a module."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    directory = str(lossd.load().directory)
    processes = [context.Process(target=_rank, args=(worker, rank, size, client.address, directory, str(folder / "store"), queue, arguments))
                 for rank in range(size)]
    for process in processes:
        process.start()
    found = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
    for rank, (result, error) in sorted(found.items()):
        assert error is None, f"rank {rank}: {error}"
    return [found[rank][0] for rank in range(size)]


def _rank(worker, rank, size, address, directory, store, queue, arguments):
    try:
        torch.set_num_threads(1)
        lossd.load(directory)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        with lossd.connect(address) as client:
            result = worker(rank, client, *arguments)
        dist.destroy_process_group()
        queue.put((rank, (_plain(result), None)))
    except BaseException:  # the other processes and the test hear of it
        queue.put((rank, (None, traceback.format_exc())))


def _plain(result):
    """Tensors as arrays, which need no shared memory on their way."""
    if isinstance(result, torch.Tensor):
        return result.detach().float().numpy()
    if isinstance(result, (list, tuple)):
        return [_plain(part) for part in result]
    if isinstance(result, dict):
        return {name: _plain(part) for name, part in result.items()}
    return result
