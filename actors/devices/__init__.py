"""The only code that knows NVML, sysfs and the binding of processes to CPUs and memory."""
