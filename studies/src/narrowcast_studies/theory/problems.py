"""Convex problems whose optimum is known to float64, and whose minimum in any subspace can be computed.

A problem is g(theta) = (1/N) sum_c f_c(theta), one f_c a client; a round's gradient is the mean of W clients'
drawn uniformly, so it is an unbiased estimate of the gradient of g, as the theorems ask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from narrowcast.numerics import Key, Purpose, keyed
from narrowcast.rounds import IndexArray

NEWTON_STEPS = 60
DECREMENT = 1e-11  # of Newton, relative to g: what is left of the gap is far below any number printed


class Restricted(NamedTuple):
    """The minimum of g over base + span(Q): where, in coordinates of Q, and how far above g*."""

    x: Tensor  # (d,)
    excess: float


class Problem(ABC):
    """All vectors are float64. `weighted` is the only thing a client computes."""

    name: str
    title: str
    D: int
    start: Tensor  # (D,) theta0
    clients: Sequence[IndexArray]
    cohort: int  # W, clients of a round

    @abstractmethod
    def excess(self, theta: Tensor) -> float:
        """g(theta) - g*."""

    @abstractmethod
    def weighted(self, theta: Tensor, index: IndexArray, weight: Tensor) -> tuple[float, Tensor]:
        """(sum_i w_i f_i, its gradient (D,)) over examples i."""

    @abstractmethod
    def restricted(self, base: Tensor, Q: Tensor) -> Restricted:
        """The minimum over base + span(Q), Q (D, d) of full rank."""

    @abstractmethod
    def curvature(self, Q: Tensor) -> float:
        """L: no eigenvalue of Q^T (Hessian of g) Q is larger, anywhere."""

    @abstractmethod
    def hessian(self) -> Tensor:
        """(D, D), at the optimum."""

    def gradients(self, theta: Tensor) -> Tensor:
        """(N, D): every client's gradient; their mean is the gradient of g."""
        rows = [
            self.weighted(theta, index, torch.full((len(index),), 1.0 / len(index)).double())[1]
            for index in self.clients
        ]
        return torch.stack(rows)

    @property
    def gap(self) -> float:
        """g(theta0) - g*."""
        return self.excess(self.start)


class Quadratic(Problem):
    """g = 1/2 (theta - c)^T diag(lambda) (theta - c); client i adds -s_i^T (theta - c), and the s_i sum to 0.

    The noise of a gradient is then s_i whatever theta is. Its size is `noise` times the squared gradient at
    theta0, spread evenly over the D directions: the C of theorem 2 is about `noise` there.
    """

    cohort = 1

    def __init__(self, name: str, spectrum: Tensor, key: Key, noise: float = 0.2, clients: int = 200) -> None:
        D = spectrum.numel()
        self.name, self.D, self.spectrum = name, D, spectrum.double()
        self.title = f"{name} quadratic, D = {D}"
        self.start = torch.zeros(D, dtype=torch.float64)
        self.centre = normals(keyed.derive(key, Purpose.DATA, 1), D).sign()  # sizes would be luck
        shifts = normals(keyed.derive(key, Purpose.DATA, 2), clients * D).view(clients, D)
        shifts = shifts - shifts.mean(0)
        size = noise * (self.spectrum * self.centre).square().sum() / shifts.square().sum(1).mean()
        self.shifts = shifts * size.sqrt()
        self.clients = [np.array([i]) for i in range(clients)]
        self._root = self.spectrum.sqrt()

    def excess(self, theta: Tensor) -> float:
        away = theta - self.centre
        return float((self.spectrum * away) @ away) / 2

    def weighted(self, theta: Tensor, index: IndexArray, weight: Tensor) -> tuple[float, Tensor]:
        away, total = theta - self.centre, weight.sum()
        pull = weight @ self.shifts[torch.as_tensor(index)]
        slope = self.spectrum * away
        return float(total * (slope @ away) / 2 - pull @ away), total * slope - pull

    def gradients(self, theta: Tensor) -> Tensor:
        return self.spectrum * (theta - self.centre) - self.shifts

    def restricted(self, base: Tensor, Q: Tensor) -> Restricted:
        """With B = diag(lambda)^1/2 Q and y = diag(lambda)^1/2 (base - c): x = -B^+ y, 1/2 |y + B x|^2."""
        B, y = self._root[:, None] * Q, self._root * (base - self.centre)
        x = -torch.linalg.lstsq(B, y[:, None]).solution[:, 0]
        return Restricted(x, float((y + B @ x).square().sum()) / 2)

    def curvature(self, Q: Tensor) -> float:
        return float(torch.linalg.matrix_norm(self._root[:, None] * Q, 2)) ** 2

    def hessian(self) -> Tensor:
        return torch.diag(self.spectrum)


class Logistic(Problem):
    """Softmax regression on digits with (reg/2) |theta|^2: 64 pixels and a one, 10 classes, D = 650.

    A client has five images of one class; every client counts the same. The optimum is found by Newton.
    """

    cohort = 20
    classes = 10

    def __init__(self, name: str, key: Key, examples: int = 600, reg: float = 0.01) -> None:
        from narrowcast.tasks import by_class, digits

        (images, labels), _ = digits.load()
        x = images[:examples].double()
        self.x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)  # (n, p)
        self.y, self.reg, self.name = labels[:examples], reg, name
        self.clients = list(by_class(self.y.numpy(), examples // 5, key))
        self.D = self.x.shape[1] * self.classes
        self.title = f"{name} regression on digits, D = {self.D}"
        self.start = torch.zeros(self.D, dtype=torch.float64)
        share = np.zeros(examples)
        for index in self.clients:
            share[index] = 1.0 / (len(index) * len(self.clients))
        self.share = torch.from_numpy(share)
        self.best = self._solve()
        self.optimum = self.value(self.best)

    def value(self, theta: Tensor) -> float:
        """g(theta)."""
        logits = self.x @ theta.view(-1, self.classes)
        losses = torch.nn.functional.cross_entropy(logits, self.y, reduction="none")
        return float(self.share @ losses + self.reg / 2 * (theta @ theta))

    def excess(self, theta: Tensor) -> float:
        return self.value(theta) - self.optimum

    def weighted(self, theta: Tensor, index: IndexArray, weight: Tensor) -> tuple[float, Tensor]:
        at = torch.as_tensor(index)
        x, y = self.x[at], self.y[at]
        log_p = torch.log_softmax(x @ theta.view(-1, self.classes), 1)
        error = log_p.exp()
        error[torch.arange(len(y)), y] -= 1
        slope = (x.T @ (error * weight[:, None])).reshape(-1) + weight.sum() * self.reg * theta
        loss = -(weight @ log_p[torch.arange(len(y)), y])
        return float(loss + weight.sum() * self.reg / 2 * (theta @ theta)), slope

    def restricted(self, base: Tensor, Q: Tensor) -> Restricted:
        """Newton on x -> g(base + Q x), with the images carried into the coordinates once."""
        d = Q.shape[1]
        features = (self.x @ Q.reshape(-1, self.classes * d)).view(len(self.x), self.classes, d)
        gram = Q.T @ Q * self.reg

        def hessian(theta: Tensor) -> Tensor:
            p = torch.softmax(self.x @ theta.view(-1, self.classes), 1) * self.share[:, None]
            mean = torch.einsum("nc,ncd->nd", p, features)
            full = (features * p[:, :, None]).view(-1, d).T @ features.view(-1, d)
            return full - (mean / self.share[:, None]).T @ mean + gram

        x = self._newton(base, Q, hessian)
        return Restricted(x, self.excess(base + Q @ x))

    def curvature(self, Q: Tensor) -> float:
        """diag(p) - p p^T <= 1/2, so the Hessian is at most 1/2 X^T X (weighted) for each class, and reg."""
        X = self.x * self.share.sqrt()[:, None]
        d = Q.shape[1]
        part = (X @ Q.reshape(-1, self.classes * d)).view(-1, d)
        return float(torch.linalg.matrix_norm(part.T @ part / 2 + self.reg * Q.T @ Q, 2))

    def hessian(self) -> Tensor:
        return self._hessian(self.best)

    def _hessian(self, theta: Tensor) -> Tensor:
        """sum_n w_n x_n x_n^T (x) (diag(p_n) - p_n p_n^T) + reg, in the order of theta: pixel, class."""
        p = torch.softmax(self.x @ theta.view(-1, self.classes), 1)
        S = (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]) * self.share[:, None, None]
        pixels = self.x.shape[1]
        xx = (self.x[:, :, None] * self.x[:, None, :]).view(-1, pixels * pixels)
        H = (xx.T @ S.view(-1, self.classes**2)).view(pixels, pixels, self.classes, self.classes)
        full = H.permute(0, 2, 1, 3).reshape(self.D, self.D)
        return full + self.reg * torch.eye(self.D, dtype=torch.float64)

    def _solve(self) -> Tensor:
        whole = torch.eye(self.D, dtype=torch.float64)
        return self._newton(self.start, whole, self._hessian)

    def _newton(self, base: Tensor, Q: Tensor, hessian: Callable[[Tensor], Tensor]) -> Tensor:
        """x with the minimum of g(base + Q x); a step is halved until it decreases g enough."""
        x = torch.zeros(Q.shape[1], dtype=torch.float64)
        everyone = np.arange(len(self.x))
        for _ in range(NEWTON_STEPS):
            theta = base + Q @ x
            value, slope = self.weighted(theta, everyone, self.share)
            gradient = Q.T @ slope
            step = torch.linalg.solve(hessian(theta), gradient)
            decrement = float(gradient @ step)
            if decrement < DECREMENT * (1 + abs(value)):
                return x
            length = 1.0
            while self.value(theta - length * (Q @ step)) > value - 0.25 * length * decrement:
                length /= 2
            x = x - length * step
        raise RuntimeError(f"Newton left a decrement of {decrement:.1e} after {NEWTON_STEPS} steps")


def normals(key: Key, count: int) -> Tensor:
    """Standard normals from a key, (count,) float64."""
    return torch.from_numpy(keyed.normals(key, Purpose.NORMALS, count)).double()


def power_law(D: int, key: Key, exponent: float = 1.2) -> Quadratic:
    """lambda_j = j^-exponent."""
    return Quadratic("power-law", torch.arange(1, D + 1).double() ** -exponent, key)


def exponential(D: int, key: Key, scale: float = 20.0) -> Quadratic:
    """lambda_j = exp(-j / scale)."""
    return Quadratic("exponential", torch.exp(-torch.arange(D).double() / scale), key)


def isotropic(D: int, key: Key) -> Quadratic:
    """lambda_j = 1: 1 - rho is a Beta(d/2, (D-d)/2), which tests hold the estimator to."""
    return Quadratic("isotropic", torch.ones(D), key)
