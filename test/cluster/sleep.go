package cluster

// Sleep is the last line of shell of a pod that has nothing more to do. It ends at SIGTERM. A sleep that is its
// container's first process would ignore it, and kubelet kills such a container only after two seconds.
const Sleep = "trap exit TERM; sleep 86400 & wait"
