#!/bin/sh
# The first process of the guest: guest.py copies it into the directory that it makes for each boot.
# The root is the host's file system, read-only. What the guest writes goes to memory: an overlay over all of it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
GUEST_DIR=${0%/*}
. "$GUEST_DIR/environment"

give_up() {
    echo "GUEST-SETUP-FAILED: $1"
    mount -t proc proc /proc
    echo o >/proc/sysrq-trigger
    sleep 60
}

"$GUEST_PYTHON" -I -S "$GUEST_DIR/prepare.py" || give_up "prepare.py"
mount -n -t tmpfs -o mode=755 tmpfs /mnt || give_up "tmpfs"
mkdir /mnt/upper /mnt/work /mnt/root
mount -n -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root || give_up "overlay"
cd /mnt/root || give_up "cd"
mount -n --move /dev dev || give_up "dev"
mount -n -t proc proc proc
mount -n -t sysfs sysfs sys
mount -n -t cgroup2 cgroup2 sys/fs/cgroup
mount -n -t tmpfs -o mode=755 tmpfs run
mkdir -p dev/shm dev/pts
mount -n -t tmpfs tmpfs dev/shm
mount -n -t devpts devpts dev/pts
pivot_root . mnt || give_up "pivot_root"
cd /
umount -n -l /mnt
rm -f /.dockerenv
[ -d "$GUEST_DIR/files" ] && cp -r "$GUEST_DIR/files/." /
exec "$GUEST_DIR/start"
