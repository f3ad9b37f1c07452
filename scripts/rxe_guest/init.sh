#!/bin/busybox sh
# First process of a lab guest: loads soft RoCE, then runs the command lines that the host types on the serial console.
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty -echo

# In the order in which they depend on each other; made together with this archive.
while read -r module; do
    insmod "/modules/$module" || { echo "insmod $module failed" && poweroff -f; }
done </modules/order
ulimit -l unlimited

echo "[[ready]]"
while read -r line; do
    eval "$line"
    echo "[[done $?]]"
done
