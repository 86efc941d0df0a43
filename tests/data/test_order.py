"""Which images make which batch."""

import random

import numpy as np
import pytest
import torch

from cbsa.data import derive_seed, seeded
from cbsa.data.order import EpochOrder, eval_shares


@pytest.mark.parametrize(("accumulate", "world_size"), [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_an_epoch_visits_each_image_once_and_drops_the_rest(accumulate, world_size):
    orders = [EpochOrder(50, 12, accumulate, 7, rank, world_size) for rank in range(world_size)]
    assert orders[0].steps == 4
    assert sorted(orders[0].permutation(3).tolist()) == list(range(50))
    shares = [order.shares(3) for order in orders]
    assert all(share.shape == (4 * accumulate, 12 // (accumulate * world_size)) for share in shares)
    assert len(set(torch.cat(shares).flatten().tolist())) == 48


def test_steps_micro_batches_and_ranks_are_contiguous_runs_of_the_permutation():
    whole = EpochOrder(50, 12, seed=7).permutation(2).tolist()
    for rank in range(2):
        order = EpochOrder(50, 12, 3, 7, rank, 2)
        for row, share in enumerate(order.shares(2, start_step=1).tolist()):
            step, micro = 1 + row // 3, row % 3
            start = step * 12 + micro * 4 + rank * 2
            assert share == whole[start : start + 2]
        assert order.batch(2, 3).tolist() == whole[36:48]


def test_orders_of_epochs_and_seeds_differ():
    orders = {tuple(EpochOrder(40, 4, seed=s).permutation(e).tolist()) for s in range(3) for e in range(3)}
    assert len(orders) == 9


@pytest.mark.parametrize("length", [1, 5, 12, 13, 24])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_covers_each_image_on_one_rank(length, world_size):
    shares = [eval_shares(length, 4, rank, world_size) for rank in range(world_size)]
    assert {share.shape for share in shares} == {(-(-length // (4 * world_size)), 4)}
    seen = torch.cat(shares).flatten()
    assert sorted(seen[seen >= 0].tolist()) == list(range(length))


def test_seeds_depend_on_every_part_and_are_the_same_in_every_process():
    assert derive_seed("order", 0, 1) == 5464234415807774710  # another would change every run
    assert len({derive_seed(*p) for p in [(1, 2), (2, 1), (12,), ("1", 2), (1, 2, 0)]}) == 5


def test_seeding_a_block_leaves_no_trace():
    def draw():
        return torch.rand(1).item(), random.random(), np.random.rand()  # noqa: NPY002

    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = draw()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    with seeded("test", 3):
        first = draw()
    assert draw() == expected
    with seeded("test", 3):
        assert draw() == first
    with seeded("test", 4):
        assert draw() != first


def test_wrong_input():
    with pytest.raises(ValueError, match=r"batch_size=10 .* world_size \* accumulate = 2 \* 2 = 4"):
        EpochOrder(50, 10, accumulate=2, world_size=2)
    with pytest.raises(ValueError, match="batch_size=64 is larger than the training set of 50 images"):
        EpochOrder(50, 64)
    with pytest.raises(ValueError, match="rank=2 must be below world_size=2"):
        EpochOrder(50, 10, rank=2, world_size=2)
    order = EpochOrder(50, 10)
    with pytest.raises(ValueError, match="start_step=6: expected 0 to 5"):
        order.shares(0, 6)
    with pytest.raises(ValueError, match="step=5: expected 0 to 4"):
        order.batch(0, 5)
    with pytest.raises(ValueError, match="epoch must be at least 0"):
        order.batch(-1, 0)
