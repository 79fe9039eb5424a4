#!/bin/bash
# One replica group per task of an array, each on a node of its own, so that Slurm requeues a lost one alone:
#
#     export RUN=/shared/run        # a folder that all nodes see; the lighthouse writes its address and token there
#     torchft_x lighthouse --min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms 10000 --run_dir $RUN &    # login node
#     WORKERS=8 sbatch --array=0-1 replicas.sh train.py --steps 1000
#
# `slurm_ft` (docs/slurm.md) does the same from one command, and brings a lost group back sooner.
#SBATCH --job-name=tft_repl --nodes=1 --ntasks=1 --exclusive --requeue
#SBATCH --open-mode=append --output=tft-%A_%a.out
echo "[$(date '+%F %T')] launching replica $SLURM_ARRAY_TASK_ID (attempt ${SLURM_RESTART_COUNT:-0}) on $SLURM_JOB_NODELIST"
exec srun --kill-on-bad-exit=1 torchft_x supervise --group "$SLURM_ARRAY_TASK_ID" --groups "$SLURM_ARRAY_TASK_COUNT" \
    --workers "${WORKERS:-1}" --run_dir "${RUN:?the folder of the run, as for the lighthouse}" -- "$@"
