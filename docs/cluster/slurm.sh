#!/usr/bin/env bash
# Four machines of a Slurm cluster as one Ray cluster, and a run on it: sbatch docs/cluster/slurm.sh
#SBATCH --job-name=trimtab
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
set -euo pipefail

# The same environment on all machines, with `pip install 'trimtab[cluster]'` in it.
source "$HOME/trimtab/.venv/bin/activate"
export RAY_USAGE_STATS_ENABLED=0

mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${machines[0]}"
address="$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')"
port=6379

# `--block` keeps each step alive; Slurm ends them with the job.
srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --node-ip-address="$address" --port="$port" \
  --num-cpus="$SLURM_CPUS_PER_TASK" --include-dashboard=false --block &
for machine in "${machines[@]:1}"; do
  srun --nodes=1 --ntasks=1 --nodelist="$machine" \
    ray start --address="$address:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
done

# The driver waits until all machines have joined.
until [ "$(ray status --address="$address:$port" 2> /dev/null | grep -c 'node_')" -ge "${#machines[@]}" ]; do
  sleep 2
done

# Everything is on a shared file system: the problem file, the record and the snapshots.
trimtab run scaffold "$HOME/trimtab/mine.py:problem" --eta-l 0.1 --K 10 --S 1000 -R 5000 \
  --out "$HOME/trimtab/runs/mine" --snapshots "$HOME/trimtab/runs/mine-snapshots" --resume \
  --shards 64 --cluster "$address:$port"
