"""Batches depend on seed and epoch alone, whatever makes them, and evaluation counts every image once."""

import pickle

import pytest
import torch

from cbsa.data import AugmentConfig, DataConfig, keep_decoded
from cbsa.data.build import choose_store
from cbsa.data.host import BatchDecoder
from cbsa.data.transforms import EvalTransform, TrainTransform
from tests.data.samples import CPU, Tiles, assert_same, eval_loader, join, train_loader

STORES = {
    "host": {"config": {"store": "host"}, "augment": {"randaugment": "rand-m9-mstd0.5", "erase": 0.5}},
    "device resized": {"config": {"store": "device"}},
    "device pad": {"config": {"store": "device"}, "augment": {"crop": "pad", "padding": 3}},
}
each_store = pytest.mark.parametrize("setting", STORES.values(), ids=STORES)


@each_store
def test_batches_do_not_depend_on_the_number_of_workers(setting):
    source = Tiles(21)
    alone = train_loader(source, **setting)
    workers = train_loader(source, **(setting | {"config": setting["config"] | {"workers": 2}}))
    for epoch in (0, 1):
        assert_same(alone.epoch(epoch), workers.epoch(epoch))
    assert_same(alone.epoch(1, start_step=3), workers.epoch(1, start_step=3))


@each_store
def test_ranks_share_out_the_batches_of_one_process(setting):
    source = Tiles(21)
    whole = list(train_loader(source, **setting).epoch(2))
    ranks = [list(train_loader(source, rank=r, world_size=2, **setting).epoch(2)) for r in range(2)]
    assert len(whole) == len(ranks[0]) == len(ranks[1]) == 5
    for step, batch in enumerate(whole):
        assert_same([batch], [ranks[0][step], ranks[1][step]])


@each_store
def test_micro_batches_are_the_parts_of_a_batch(setting):
    source = Tiles(21)
    whole = list(train_loader(source, **setting).epoch(0))
    parts = list(train_loader(source, accumulate=2, **setting).epoch(0))
    assert len(parts) == 2 * len(whole)
    assert_same(whole, parts)
    assert_same(whole[1:2], parts[2:4])


@each_store
def test_an_epoch_resumed_goes_on_as_it_would_have(setting):
    loader = train_loader(Tiles(21), accumulate=2, **setting)
    whole = list(loader.epoch(3))
    again = train_loader(Tiles(21), accumulate=2, **setting)
    for start in range(1, 5):
        assert_same(whole[2 * start :], again.epoch(3, start_step=start))
    assert list(again.epoch(3, start_step=5)) == []


@each_store
def test_indices_name_the_images_and_their_order_is_known_beforehand(setting):
    source = Tiles(21)
    loader = train_loader(source, **setting)
    assert (loader.batch_size, loader.steps_per_epoch) == (4, 5)
    for step, batch in enumerate(loader.epoch(1)):
        assert torch.equal(batch.indices, loader.batch_indices(1, step))
        assert batch.targets.tolist() == [source.labels[i] for i in batch.indices]
        assert batch.valid.all()


def test_augmentation_is_drawn_anew_for_epochs_and_seeds():
    source = Tiles(8)
    for setting in STORES.values():
        loaders = [train_loader(source, seed=seed, batch_size=8, **setting) for seed in (0, 1)]
        seen = []
        for loader in loaders:
            for epoch in (0, 1):
                batch = join(loader.epoch(epoch))
                seen.append(batch["images"][batch["indices"].argsort()])
        assert all(not torch.equal(seen[i], seen[j]) for i in range(4) for j in range(i))


def test_skipped_batches_are_not_read():
    source = Tiles(21)
    loader = train_loader(source)
    list(loader.epoch(0, start_step=4))
    assert source.reads == loader.batch_indices(0, 4).tolist()


def test_an_epoch_broken_off_leaves_nothing_behind():
    loader = train_loader(Tiles(40), config={"workers": 2})
    expected = list(train_loader(Tiles(40)).epoch(1))
    next(loader.epoch(0))
    assert_same(loader.epoch(1), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_does_not_draw_from_the_global_generator(workers):
    loader = train_loader(Tiles(12), config={"workers": workers})
    state = torch.get_rng_state()
    list(loader.epoch(0))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("random", [False, True])
def test_a_decoder_survives_the_way_to_a_spawned_worker(random):
    config = DataConfig(img_size=8)
    augment = AugmentConfig(randaugment="rand-m9", erase=0.5)
    transform = TrainTransform(config, augment) if random else EvalTransform(config)
    decoder = BatchDecoder(Tiles(6), transform, (3, 8, 8), seed=0 if random else None)
    copy = pickle.loads(pickle.dumps(decoder))
    assert torch.equal(decoder[2, [1, 4]].images, copy[2, [1, 4]].images)


def test_images_that_need_no_change_arrive_as_they_are():
    source = Tiles(8)
    expected = torch.from_numpy(source.images).permute(0, 3, 1, 2)
    augment = {"crop": "none", "flip": 0.0}
    for store in ("host", "device"):
        config = {"store": store, "crop_pct": 1.0}
        batch = join(train_loader(source, config=config, augment=augment).epoch(0))
        assert batch["images"].dtype == torch.uint8
        assert torch.equal(batch["images"], expected[batch["indices"]])
        assert torch.equal(join(eval_loader(source, config=config))["images"], expected)


def test_both_stores_pad_and_flip_alike():
    """Every crop of either store is one of 2 × 49 windows of the padded image, and most of these occur."""
    source = Tiles(1)
    image = torch.from_numpy(source.images[0]).permute(2, 0, 1)
    padded = torch.nn.functional.pad(image.float(), (3, 3, 3, 3), mode="reflect").byte()
    windows = {padded[:, i : i + 8, j : j + 8].contiguous() for i in range(7) for j in range(7)}
    known = {w.numpy().tobytes() for w in windows} | {w.flip(-1).numpy().tobytes() for w in windows}
    for store in ("host", "device"):
        loader = train_loader(
            source, batch_size=1, config={"store": store}, augment={"crop": "pad", "padding": 3}
        )
        seen = {next(loader.epoch(epoch)).images.numpy().tobytes() for epoch in range(300)}
        assert seen <= known
        assert len(seen) > 85  # 93 of 98 are to be expected


@pytest.mark.parametrize("store", ["host", "device"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 10, 24])
def test_evaluation_counts_each_image_once(store, world_size, count):
    source = Tiles(count)
    seen, batches = [], set()
    for rank in range(world_size):
        loader = eval_loader(source, config={"store": store}, rank=rank, world_size=world_size)
        assert loader.store == store
        for _ in range(2):  # a second pass gives the same
            passed = list(loader)
            assert len(passed) == len(loader)
            assert {tuple(b.images.shape) for b in passed} == {(4, 3, 8, 8)}
        batches.add(len(passed))
        joined = join(passed)
        assert (joined["indices"][~joined["valid"]] == -1).all()
        assert (joined["targets"][~joined["valid"]] == 0).all()
        for index, target, image in zip(
            joined["indices"][joined["valid"]],
            joined["targets"][joined["valid"]],
            joined["images"][joined["valid"]],
            strict=True,
        ):
            seen.append(int(index))
            assert target == source.labels[index]
            assert torch.equal(image, torch.from_numpy(source.images[index]).permute(2, 0, 1))
    assert sorted(seen) == list(range(count))
    assert len(batches) == 1


def test_progress_is_told_while_a_resident_set_is_decoded():
    calls = []
    train_loader(Tiles(600), config={"store": "device"}, progress=lambda *call: calls.append(call))
    assert calls == [(256, 600), (512, 600), (600, 600)]


def test_decoded_images_are_kept_for_the_next_run():
    """Inside the context, for the same settings, if all could be read; batches are what they would be."""
    resident = {"config": {"store": "device"}}
    source = Tiles(21)
    expected = train_loader(source, **resident, seed=5).epoch(1)
    with keep_decoded():
        train_loader(source, **resident, seed=3)
        count = len(source.reads)
        again = train_loader(source, config={"store": "device", "workers": 0}, seed=5)
        assert len(source.reads) == count
        assert_same(again.epoch(1), expected)
        train_loader(source, config={"store": "device", "interpolation": "bilinear"})
        assert len(source.reads) == count + 21
        torn = Tiles(21, broken=[4])
        for reads in (21, 42):
            with pytest.warns(RuntimeWarning, match="cannot read tile 4"):
                train_loader(torn, **resident)
            assert len(torn.reads) == reads
    train_loader(source, **resident)
    assert len(source.reads) == count + 42


def test_the_store_chosen():
    source, plain = Tiles(2), AugmentConfig()
    assert choose_store(DataConfig(), plain, source, CPU) == "host"
    assert choose_store(DataConfig(store="device"), plain, source, CPU) == "device"
    for augment in (AugmentConfig(randaugment="rand-m9"), AugmentConfig(erase=0.1)):
        with pytest.raises(ValueError, match=r"use data\.store='host'"):
            choose_store(DataConfig(store="device"), augment, source, CPU)


def test_the_store_chosen_for_a_gpu(monkeypatch):
    source, plain, gpu = Tiles(2), AugmentConfig(), torch.device("cuda")
    small = DataConfig(img_size=64)
    free = 4 * 2 * 3 * 64 * 64
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    assert choose_store(small, plain, source, gpu) == "device"
    assert choose_store(small, None, source, gpu) == "device"
    assert choose_store(DataConfig(img_size=65), plain, source, gpu) == "host"  # more than a quarter
    assert choose_store(small, AugmentConfig(erase=0.1), source, gpu) == "host"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 60, 1 << 60))
    assert choose_store(DataConfig(img_size=128), plain, source, gpu) == "device"
    assert choose_store(DataConfig(img_size=129), plain, source, gpu) == "host"


def test_padding_larger_than_the_image_is_refused():
    for store in ("host", "device"):
        with pytest.raises(ValueError, match=r"augment\.padding=8 must be below data\.img_size=8"):
            train_loader(Tiles(4), config={"store": store}, augment={"crop": "pad", "padding": 8})


@pytest.mark.gpu
@each_store
@pytest.mark.parametrize("workers", [0, 2])
def test_a_gpu_gets_the_same_batches(setting, workers):
    source, gpu = Tiles(40), torch.device("cuda", 0)
    config = setting["config"] | {"workers": workers}
    expected = list(train_loader(source, **setting).epoch(1))
    found = list(train_loader(source, device=gpu, **(setting | {"config": config})).epoch(1))
    assert {(b.images.device, b.targets.device, b.valid.device) for b in found} == {(gpu, gpu, gpu)}
    for left, right in zip(expected, found, strict=True):
        torch.testing.assert_close(right.images.cpu(), left.images, rtol=0, atol=1e-3)
        assert torch.equal(right.targets.cpu(), left.targets)
        assert torch.equal(right.indices, left.indices)


@pytest.mark.gpu
@pytest.mark.parametrize("crop", ["resized", "pad", "none"])
def test_the_resident_loader_does_not_make_the_cpu_wait(crop):
    loader = train_loader(
        Tiles(40),
        config={"store": "device"},
        augment={"crop": crop, "padding": 2},
        device=torch.device("cuda", 0),
    )
    batches = loader.epoch(0)
    next(batches)
    try:
        torch.cuda.set_sync_debug_mode("error")
        assert len(list(batches)) == 9
    finally:
        torch.cuda.set_sync_debug_mode("default")
