package vm

// Hardware describes a guest's machine, whichever [Backend] runs it.
type Hardware struct {
	Initrd string   // the backend's, perhaps with archives appended
	Append []string // kernel arguments
	// Dir is the folder for the backend's own output.
	Dir string
	// Console is the file for the kernel's output.
	Console string
	// Ports let the guest write to files on the host, through /dev/virtio-ports/NAME.
	Ports  []Port
	CPUs   int
	Memory int // MiB
	Drives []Drive
	NICs   []NIC
}

// Drive is a disk. The first is /dev/vda in the guest, and so on.
type Drive struct {
	Path string
	// Base is the raw image to which Path holds the changes, see [Backend.CreateOverlay]; empty if Path is a raw
	// image itself.
	Base     string
	ReadOnly bool
	// Unsafe ignores the guest's flushes. It is faster, but loses data if the host loses power as well.
	Unsafe bool
	// Serial is the content of /sys/block/vdX/serial in the guest.
	Serial string
}

// NIC is a network card on an existing tap device. The first is eth0 in the guest.
type NIC struct {
	Tap string
	MAC string
}

// Port lets the guest write to a file on the host.
type Port struct {
	Name, File string
}

// Program is the process of a machine, and how to start it.
type Program struct {
	// Argv is the program's path, and its arguments.
	Argv []string
	// Env is added to the environment.
	Env []string `json:",omitempty"`
	// Files are opened for appending, as file descriptors 3 and up.
	Files []string `json:",omitempty"`
	// OneProcessor: the process runs best pinned to one processor of this machine.
	OneProcessor bool `json:",omitempty"`
}
