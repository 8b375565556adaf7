EVENT_JOB_ERROR: int
EVENT_JOB_MISSED: int
EVENT_JOB_MAX_INSTANCES: int

class SchedulerEvent:
    code: int

class JobEvent(SchedulerEvent): ...

class JobExecutionEvent(JobEvent):
    exception: BaseException | None
