"""How the Python programs of bench/ show what they measured, as support/summary.h does for the others."""
import datetime
import os
import pathlib
import re
import statistics


def summary(values, digits=1):
    """Median and quartiles: 12.3 [11.9, 13.0]."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]
    return f"{datetime.date.today()}, {model}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}"
