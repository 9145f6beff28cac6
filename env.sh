export PATH=/work/main/.venv/bin:$PATH PYTHONPATH=/work/w-bench/src:/work/w-bench/papers/src TRIMTAB_DATA=/work/shared/data
