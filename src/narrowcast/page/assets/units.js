// Bytes, counts and seconds as `narrowcast.units` writes them: three significant digits, decimal units.
const units = (() => {
  const BYTES = [" B", " kB", " MB", " GB", " TB", " PB"];
  const COUNTS = ["", "k", "M", "B", "T"];
  const rounded = (value) => Number(value.toPrecision(3));
  const digits = (value) => {
    const short = rounded(value);
    return String(Math.abs(short) >= 1000 ? Math.round(value) : short);
  };
  function scaled(value, names) {
    for (const unit of names.slice(0, -1)) {
      if (rounded(value) < 1000) return digits(value) + unit;
      value /= 1000;
    }
    return digits(value) + names[names.length - 1];
  }
  function seconds(value) {
    if (rounded(value) < 1) return `${digits(value * 1e3)} ms`;
    for (const [unit, step] of [[" s", 60], [" min", 60], [" h", 24]]) {
      if (rounded(value) < step) return digits(value) + unit;
      value /= step;
    }
    return `${digits(value)} d`;
  }
  const times = (value) => (value >= 100 ? value.toFixed(0) : String(rounded(value)));
  const metric = (value) => (Math.abs(value) < 10 ? value.toFixed(4) : String(Number(value.toPrecision(5))));
  return {
    bytes: (value) => scaled(value, BYTES),
    count: (value) => scaled(value, COUNTS),
    rate: (value) => `${scaled(value, ["", " k", " M", " G"]).replace(/^([\d.]+)$/, "$1 ")}bit/s`,
    seconds, digits, times, metric,
    whole: (value) => Math.round(value).toLocaleString("en").replaceAll(",", "\u202f"),
  };
})();
