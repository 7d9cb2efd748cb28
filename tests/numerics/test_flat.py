"""Laws of the flat vector: views and not copies, each trainable parameter once, gradients as autograd's."""

import copy
import pickle

import pytest
import torch
from torch import nn

from narrowcast.numerics.flat import FlatParameters, Layout, all_finite


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def backward(module, x):
    module(x).square().sum().backward()


X = torch.linspace(-1, 1, 15).view(5, 3)


def test_theta_and_grad_are_the_modules_memory():
    module = model()
    before = torch.cat([p.detach().reshape(-1).clone() for p in module.parameters()])
    flat = FlatParameters(module)
    assert torch.equal(flat.theta, before)
    flat.theta.fill_(0.5)
    assert all((p == 0.5).all() for p in module.parameters())
    with torch.no_grad():
        module[2].bias.fill_(7.0)
    assert flat.theta[-2:].tolist() == [7.0, 7.0]
    base = flat.theta.untyped_storage().data_ptr()
    assert all(p.untyped_storage().data_ptr() == base for p in module.parameters())


def test_backward_fills_grad_as_autograd_would():
    plain, module = model(), model()
    flat = FlatParameters(module)
    backward(plain, X)
    backward(module, X)
    expected = torch.cat([p.grad.reshape(-1) for p in plain.parameters()])
    assert torch.equal(flat.grad, expected)
    backward(module, X)
    assert torch.allclose(flat.grad, 2 * expected)


def test_zero_grad_detaches_and_attach_grad_mends():
    module = model()
    flat = FlatParameters(module)
    backward(module, X)
    expected = flat.grad.clone()
    module.zero_grad(set_to_none=True)
    flat.grad.zero_()
    flat.attach_grad()
    backward(module, X)
    assert torch.equal(flat.grad, expected)


def test_an_update_in_place_of_the_module_moves_theta():
    module = model()
    flat = FlatParameters(module)
    start = flat.theta.clone()
    backward(module, X)
    with torch.no_grad():
        for p in module.parameters():
            p -= 0.1 * p.grad
    assert torch.equal(flat.theta, start - 0.1 * flat.grad)


def test_state_dict_survives_flattening():
    module = model()
    flat = FlatParameters(module)
    saved = {k: v.clone() for k, v in module.state_dict().items()}
    flat.theta.zero_()
    module.load_state_dict(saved)
    assert torch.equal(flat.theta[:12].view(4, 3), saved["0.weight"])
    assert module[0].weight.data_ptr() == flat.theta.data_ptr()


def test_tied_weights_count_once():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    flat = FlatParameters(module)
    assert flat.layout.names == ("0.weight", "0.bias", "1.bias")
    assert flat.layout.size == flat.theta.numel() == 15
    flat.theta[0] = 3.0
    assert module[0].weight[0, 0] == module[1].weight[0, 0] == 3.0
    backward(module, X)
    assert torch.equal(module[0].weight.grad, flat.grad[:9].view(3, 3))


def test_frozen_parameters_are_left_alone():
    module = model()
    module[0].requires_grad_(False)
    pointer = module[0].weight.data_ptr()
    flat = FlatParameters(module)
    assert flat.layout.names == ("2.weight", "2.bias")
    flat.theta.zero_()
    assert module[0].weight.data_ptr() == pointer
    assert module[0].weight.abs().sum() > 0
    backward(module, X)
    assert module[0].weight.grad is None


def test_a_frozen_parameter_may_have_any_type():
    module = model()
    module[0].requires_grad_(False).double()
    assert FlatParameters(module).layout.size == 10


def test_channels_last_parameters_keep_their_values():
    module = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    weight = module.weight.detach().clone()
    flat = FlatParameters(module)
    assert torch.equal(module.weight, weight)
    assert torch.equal(flat.layout.split(flat.theta)["weight"], weight)


def test_parameters_of_one_storage_that_do_not_overlap_are_fine():
    module, both = nn.Module(), torch.arange(6.0)
    module.a, module.b = nn.Parameter(both[:3]), nn.Parameter(both[3:])
    assert FlatParameters(module).theta.tolist() == list(range(6))


def test_load_copies_and_knows_its_own_vector():
    flat = FlatParameters(model())
    other = torch.arange(26.0)
    flat.load(other)
    other.zero_()
    assert torch.equal(flat.theta, torch.arange(26.0))
    flat.load(flat.theta)
    with pytest.raises(ValueError, match=r"26 parameters, theta has shape \(25,\)"):
        flat.load(torch.zeros(25))


def assigned(module):
    module.load_state_dict({name: value.clone() for name, value in module.state_dict().items()}, assign=True)


@pytest.mark.parametrize(
    "take",
    [FlatParameters, assigned, lambda module: module.double().float()],
    ids=["another", "assigned", "converted"],
)
def test_parameters_that_were_taken_out_are_views_again_after_load(take):
    module = nn.Sequential(model(), nn.Linear(2, 2), nn.Linear(2, 2))
    module[2].weight = module[1].weight
    flat, plain = FlatParameters(module), copy.deepcopy(module)
    take(module)
    theta = torch.linspace(-1, 1, flat.layout.size)
    flat.load(theta)
    flat.grad.zero_()
    backward(module, X)
    FlatParameters(plain).load(theta)
    backward(plain, X)
    assert module[2].weight is module[1].weight
    assert torch.equal(flat.grad, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]))
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in module.parameters()]), theta)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_memory_of_its_own(copied):
    flat = FlatParameters(model())
    other = copied(flat)
    assert torch.equal(other.theta, flat.theta)
    other.theta.fill_(0.5)
    assert all((p == 0.5).all() for p in other.module.parameters())
    assert not (flat.theta == 0.5).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda module: module.double(), r"0\.weight was \(4, 3\) .*float32 on cpu and is .*float64"),
        (lambda module: module.add_module("2", nn.Linear(4, 5)), r"2\.weight .* and is \(5, 4\)"),
        (lambda module: module.pop(2), r"2\.weight .* and is gone: .* new task"),
    ],
)
def test_a_module_that_has_changed_is_refused(change, message):
    module = model()
    flat = FlatParameters(module)
    change(module)
    with pytest.raises(ValueError, match=message):
        flat.attach()


def test_a_parameter_that_was_moved_elsewhere_is_missed_by_load():
    module = model()
    flat = FlatParameters(module)
    nn.utils.parametrizations.weight_norm(module[0])
    with pytest.raises(ValueError, match=r"0\.weight .* and is gone"):
        flat.load(flat.theta)


def test_layout_splits_into_views():
    layout = Layout(("a", "b"), ((2, 3), ()))
    theta = torch.arange(7.0)
    parts = layout.split(theta)
    assert {n: tuple(p.shape) for n, p in parts.items()} == {"a": (2, 3), "b": ()}
    parts["b"].fill_(-1)
    assert theta[6] == -1


def overlapping():
    module, both = nn.Module(), torch.zeros(6)
    module.a, module.b = nn.Parameter(both[:4]), nn.Parameter(both[3:])
    return module


def empty():
    module = nn.Module()
    module.a = nn.Parameter(torch.zeros(0))
    return module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (nn.ReLU, "ReLU has no trainable parameters"),
        (lambda: model().requires_grad_(False), "Set requires_grad"),
        (empty, "no trainable parameters"),
        (lambda: nn.LazyLinear(3), "weight has no shape yet: run one forward pass"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), r"1\.weight is torch\.float64"),
        (lambda: nn.Linear(2, 2).half(), "dense float32"),
        (lambda: nn.Linear(2, 2, device="meta"), "on meta"),
        (overlapping, "a and b overlap in memory"),
    ],
)
def test_unfit_modules_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        FlatParameters(make())


@pytest.mark.parametrize("size", [1, 7, 33, 4096, 100_003])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_number_that_is_not_finite_is_found_wherever_it_stands(size, value):
    for place in {0, size // 2, size - 1}:
        numbers = torch.linspace(-1.5e38, 1.5e38, size)  # their sum overflows: they are finite all the same
        assert all_finite(numbers)
        numbers[place] = value
        assert not all_finite(numbers)
        assert not torch.isfinite(numbers).all()
    assert all_finite(torch.empty(0))
