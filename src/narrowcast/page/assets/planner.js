// `narrowcast plan` in the browser: the formulas of narrowcast.bandwidth and narrowcast.methods.sizes, whose
// constants come with the page. tests/page/test_planner_js.py evaluates both over a grid.
const planner = (() => {
  const sum = (numbers) => numbers.reduce((total, x) => total + x, 0);

  /** [the first stage of an epoch, the share of its rounds in each stage from there on]. */
  function shares(epoch, R, N) {
    const begin = epoch * R, end = begin + R, first = Math.floor(begin / N), found = [];
    for (let s = first; s <= Math.floor((end - 1) / N); s++)
      found.push((Math.min(end, (s + 1) * N) - Math.max(begin, s * N)) / R);
    return [first, found];
  }
  /** x * y, where all of y but its ends is one number: running sums of x, in the time of their lengths. */
  function convolved(x, y) {
    const n = y.length, inner = n > 2 ? y[1] : 0, sums = [0];
    for (const value of x) sums.push(sums[sums.length - 1] + value);
    const made = Array.from({ length: x.length + n - 1 },
      (_, at) => inner * (sums[Math.min(at + 1, x.length)] - sums[Math.max(at + 1 - n, 0)]));
    x.forEach((value, i) => {
      made[i] += (y[0] - inner) * value;
      if (n > 1) made[i + n - 1] += (y[n - 1] - inner) * value;
    });
    return made;
  }
  const gcd = (a, b) => (b ? gcd(b, a % b) : a);

  /** Entry m: how many downloads a client is expected to get while it lacks m finished stages. */
  function lags(E, p, R, N) {
    const found = new Array(Math.ceil((E * R) / N)).fill(0);
    if (p > 1) {
      const apart = p * E - 1, finished = found.length - 1;
      const each = Math.min(finished, Math.floor(finished / apart)), further = finished - each * apart;
      found[0] += 1;
      found[each] += apart - further;
      if (further > 0) found[Math.min(finished, each + 1)] += further;
      return found;
    }
    const add = (at, numbers, weight) => numbers.forEach((x, i) => { found[at + i] += weight * x; });
    for (let e = 0; e < E; e++) add(...shares(e, R, N), p * (1 - p) ** e);
    const period = N / gcd(N, R);
    for (let first = 0; first < Math.min(period, E); first++)
      for (let gap = 1; gap < E - first; gap++) {
        const weight = Math.ceil((E - first - gap) / period) * p * p * (1 - p) ** (gap - 1);
        const [before, share] = shares(first, R, N), [now, also] = shares(first + gap, R, N);
        add(now - (before + share.length - 1), convolved(share.slice().reverse(), also), weight);
      }
    return found;
  }

  /** What a method sends: bytes of an upload, of the download of a client that lacks m stages, how often. */
  function shape(method, D, asked, c) {
    const block = (data) => data + (data < 1 << 16 ? c.short : c.long);
    const whole = c.header + block(4 * D);
    if (!method.family)
      return { up: whole, down: () => whole, fewer: method.local ? asked.local_steps : 1 };
    const numbers = (count, bits) => {
      if (bits === c.plain_bits) return 4 * count;
      const own = Math.max(bits - c.overhead / Math.max(1, count), bits / 2);
      return Math.min(5 + 4 * count, Math.ceil((own * count + c.overhead) / 8));
    };
    const K = method.subspaces ?? asked.subspaces;
    const up = c.header + block(numbers(asked.dim, asked.up_bits ?? method.up_bits));
    const stage = numbers(K * asked.dim, asked.down_bits ?? method.down_bits), base = 4 * D;
    const dense = c.header + block(base) + block(stage);
    const down = (m) => {
      if (stage > base) return whole;
      if (!method.varies) return c.header + block(stage);
      return (m + 1) * block(stage) > block(base) + block(stage) ? dense : c.header + (m + 1) * block(stage);
    };
    return { up, down, fewer: 1 };
  }

  /** Seconds of so many rounds on a network: see narrowcast.bandwidth.hours. */
  function training(links, rounds, cohort, down, up, work) {
    const times = links.down.map((_, i) => 2 * links.latency[i] + (8 * down) / links.down[i] + work / links.flops[i] + (8 * up) / links.up[i]);
    const N = times.length, c = Math.max(1, cohort);
    times.sort((a, b) => a - b);
    return rounds * sum(times.map((t, i) => t * (((i + 1) / N) ** c - (i / N) ** c)));
  }

  /** Rows as `plan` has them: bytes and seconds of one client over the training, and of all clients. */
  function plan(asked, c) {
    const rounds = Math.ceil(asked.clients / asked.cohort);
    const visits = lags(asked.epochs, asked.participation, rounds, asked.refresh ?? rounds);
    let first = null;
    return c.methods.map((method) => {
      const made = shape(method, asked.params, asked, c);
      const messages = sum(visits) / made.fewer;
      const up = messages * made.up;
      const down = sum(visits.map((n, m) => (n > 0 ? n * made.down(m) : 0))) / made.fewer;
      first ??= { up, down };
      const seconds_up = (8 * up) / asked.up_bps, seconds_down = (8 * down) / asked.down_bps;
      return {
        method: method.name, messages, bytes_up: up, bytes_down: down, seconds_up, seconds_down,
        seconds: seconds_up + seconds_down, bytes_all_clients: (up + down) * asked.clients,
        compression: 2 / (up / first.up + down / first.down),
        training_seconds: asked.network ? training(c.networks[asked.network], (asked.epochs * rounds) / made.fewer,
          Math.min(asked.clients, asked.cohort * asked.participation), down / messages, made.up,
          c.flops * asked.params * asked.examples * made.fewer) : null,
      };
    });
  }
  return { plan, lags };
})();
if (typeof module !== "undefined") module.exports = { planner };
