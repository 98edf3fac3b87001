package fetch

import (
	"sync"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// task is a piece of work: a whole object, or one range of a large one.
type task struct {
	object store.Object
	// large and part are set for a range.
	large *largeObject
	part  store.Span
}

// queue distributes tasks. Ranges of begun objects come before new objects, so that few files are
// unfinished at any time.
type queue struct {
	mu      sync.Mutex
	cond    *sync.Cond
	objects []store.Object
	ranges  []task
	working int
	stopped bool
}

func newQueue(objects []store.Object) *queue {
	q := &queue{objects: objects}
	q.cond = sync.NewCond(&q.mu)
	return q
}

// next waits for a task. It returns false when all is done, or after stop. The caller calls done after
// each task.
func (q *queue) next() (task, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case q.stopped:
			return task{}, false
		case len(q.ranges) > 0:
			t := q.ranges[0]
			q.ranges = q.ranges[1:]
			q.working++
			return t, true
		case len(q.objects) > 0:
			t := task{object: q.objects[0]}
			q.objects = q.objects[1:]
			q.working++
			return t, true
		case q.working == 0:
			return task{}, false
		}
		q.cond.Wait()
	}
}

// done ends a task, and wakes the waiting workers.
func (q *queue) done() {
	q.mu.Lock()
	q.working--
	q.mu.Unlock()
	q.cond.Broadcast()
}

// add appends ranges to the waiting ones.
func (q *queue) add(tasks ...task) {
	q.mu.Lock()
	q.ranges = append(q.ranges, tasks...)
	q.mu.Unlock()
	q.cond.Broadcast()
}

// stop makes next return false from now on.
func (q *queue) stop() {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	q.cond.Broadcast()
}
