#!/bin/bash
# The same script as one classic job: torchrun over all nodes, no other groups, and a lost node ends it.
#
#     WORKERS=8 sbatch -N 2 classic.sh train.py --steps 1000
#
# Without a lighthouse's address the script trains as the only group (docs/write_a_script.md).
#SBATCH --job-name=classic --ntasks-per-node=1 --exclusive --output=classic-%j.out
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc_per_node "${WORKERS:-1}" \
    --rdzv_backend c10d --rdzv_endpoint "$head:29500" --rdzv_id "$SLURM_JOB_ID" "$@"
