package jobvolume_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

// A worker of an Indexed Job writes its part of the result into its own directory,
// where the others find it, and logs to a file that outlives its pod.
func Example() {
	dir, err := os.MkdirTemp("", "persistent")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Setenv(jobvolume.EnvDir, dir)    // in a pod, the job's recipe sets it
	os.Setenv(jobvolume.EnvWorker, "3") // in a pod, Kubernetes sets it

	volume, err := jobvolume.FromEnvironment()
	if err != nil {
		log.Fatal(err)
	}
	logFile, err := volume.OpenLog()
	if err != nil {
		log.Fatal(err)
	}
	defer logFile.Close()
	logger := log.New(logFile, "", 0)

	own, err := volume.WorkerDir()
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "part"), []byte("42"), 0o644); err != nil {
		log.Fatal(err)
	}
	logger.Print("wrote my part")

	parts, _ := filepath.Glob(filepath.Join(volume.JobDirPath(), "worker-*", "part"))
	for _, part := range parts {
		name, _ := filepath.Rel(dir, part)
		fmt.Println(name)
	}
	said, _ := os.ReadFile(volume.LogFileName())
	fmt.Printf("logs/worker-3.log: %s", said)
	// Output:
	// worker-3/part
	// logs/worker-3.log: wrote my part
}
