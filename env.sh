export PATH=/work/main/.venv/bin:$PATH PYTHONPATH=/work/w-bench/src:/work/w-bench/papers/src TRIMTAB_DATA=/work/shared/data
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 KMP_BLOCKTIME=0
