export PATH=/work/main/.venv/bin:$PATH PYTHONPATH=/work/w-model/src:/work/w-model/papers/src TRIMTAB_DATA=/work/shared/data
