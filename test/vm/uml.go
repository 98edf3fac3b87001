package vm

import (
	"fmt"
	"path/filepath"
	"strings"
)

// umlArguments returns the command line of a User-Mode Linux process, and the files that it writes to as file
// descriptors 3 and up. Such a machine has one processor: with two, each system call waits for the other processor.
func umlArguments(kernel string, h Hardware) (args, files []string, err error) {
	args = []string{
		kernel, fmt.Sprintf("mem=%dM", h.Memory), "seccomp=auto",
		"uml_dir=" + filepath.Join(h.Dir, "uml"), "initrd=" + h.Initrd,
		"con=null", "con0=null", "con1=null",
		// Otherwise every LVM command queries two dozen empty devices.
		"max_loop=0", "nbd.nbds_max=0",
		"console=ttyS0", "net.ifnames=0",
		// With delegations, a node that is both the NFS server and its client did not see other clients' new
		// directory entries for minutes.
		"nfsv4.directory_delegations=0",
		// Timers have the resolution of the tick, 10 ms. Go's runtime sleeps for 20 microseconds at a time to
		// monitor its threads, and each of these timers is an interrupt: program starts took a tenth more processor
		// time.
		"highres=off",
	}
	line := func(file string) {
		args = append(args, fmt.Sprintf("ssl%d=null,fd:%d", len(files), 3+len(files)))
		files = append(files, file)
	}
	line(h.Console)
	var ports []string
	for _, p := range h.Ports {
		ports = append(ports, fmt.Sprintf("%s:ttyS%d", p.Name, len(files)))
		line(p.File)
	}
	if len(ports) > 0 {
		args = append(args, "flexlvm.ports="+strings.Join(ports, ","))
	}
	for i, d := range h.Drives {
		arg, err := d.umlArgument(i)
		if err != nil {
			return nil, nil, err
		}
		args = append(args, arg)
	}
	for i, n := range h.NICs {
		args = append(args, fmt.Sprintf("vec%d:transport=tap,ifname=%s,depth=128,gro=1,mac=%s", i, n.Tap, n.MAC))
	}
	return append(args, h.Append...), files, nil
}

func (d Drive) umlArgument(i int) (string, error) {
	for _, path := range []string{d.Path, d.Base} {
		if strings.ContainsAny(path, ",:") {
			return "", fmt.Errorf("disk %s: User-Mode Linux takes no commas and colons in the path of a disk", path)
		}
	}
	flags := ""
	if d.ReadOnly {
		flags = "r"
	}
	if d.Unsafe {
		flags += "u"
	}
	// If there is a base, the kernel creates a missing file for the changes.
	return fmt.Sprintf("ubd%d%s=%s,%s,%s", i, flags, d.Path, d.Base, d.Serial), nil
}

// umlEnvironment places the machine's memory, which is a file, in the host's memory.
var umlEnvironment = []string{"TMPDIR=/dev/shm", "HOME=/root"}
